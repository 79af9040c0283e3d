"""Rollups by minute, and which minutes have changed since they were rolled up."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_MARK_ALL = """
INSERT INTO rollup_changes (minute, mark)
SELECT DISTINCT CAST(FLOOR(arrived_at / 60) AS BIGINT), 0 FROM requests
WHERE arrived_at >= 0 AND arrived_at < 100000000000
"""


def upgrade() -> None:
    """Create both tables; every minute that has requests is to be rolled up."""
    op.create_table(
        "rollup_changes",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute", name=op.f("pk_rollup_changes")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollups",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("route", sa.Text()),
        sa.Column("tenant", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("experiment", sa.Text()),
        sa.Column("arm", sa.Text()),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("known_requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("causes", _JSON, nullable=False),
        sa.Column("ttft_requests", sa.BigInteger(), nullable=False),
        sa.Column("ttft_seconds", sa.Double(), nullable=False),
        sa.Column("tpot_requests", sa.BigInteger(), nullable=False),
        sa.Column("tpot_seconds", sa.Double(), nullable=False),
        sa.Column("ttft_sketch", _JSON, nullable=False),
        sa.Column("ttft_client_sketch", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("minute", "key", name=op.f("pk_rollups")),
        sqlite_with_rowid=False,
    )
    statement = _MARK_ALL
    if op.get_bind().dialect.name == "sqlite":  # may lack FLOOR; its cast cuts off
        statement = statement.replace("FLOOR(arrived_at / 60)", "arrived_at / 60")
    op.execute(statement)


def downgrade() -> None:
    """Drop both tables; they hold nothing that the requests do not tell."""
    op.drop_table("rollups")
    op.drop_table("rollup_changes")
