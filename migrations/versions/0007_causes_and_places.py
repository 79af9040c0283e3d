"""Rollups of miss causes and of the places of misses."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MARK_ALL = """
INSERT INTO rollup_changes (minute, mark) SELECT DISTINCT minute, 0 FROM rollups WHERE true
ON CONFLICT (minute) DO UPDATE SET mark = 0
"""


def upgrade() -> None:
    """Create both tables; every minute that was rolled up without them is to be rolled up again."""
    op.create_table(
        "rollup_causes",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("known_requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("ttft_requests", sa.BigInteger(), nullable=False),
        sa.Column("ttft_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("minute", "cause", name=op.f("pk_rollup_causes")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollup_misses",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("route", sa.Text()),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("role", sa.Text()),
        sa.Column("message_index", sa.Integer()),
        sa.Column("value_kind", sa.Text()),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("example_tokens", sa.Integer(), nullable=False),
        sa.Column("example_request_id", sa.Text(), nullable=False),
        sa.Column("example_ordinal", sa.Integer(), nullable=False),
        sa.Column("example_char_start", sa.Integer()),
        sa.Column("example_char_end", sa.Integer()),
        sa.PrimaryKeyConstraint("minute", "key", name=op.f("pk_rollup_misses")),
        sqlite_with_rowid=False,
    )
    op.execute(_MARK_ALL)


def downgrade() -> None:
    """Drop both tables; they hold nothing that requests and misses do not tell."""
    op.drop_table("rollup_misses")
    op.drop_table("rollup_causes")
