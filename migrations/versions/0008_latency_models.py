"""What latency models tell besides: quantiles, what each group of features adds, their window."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_NUMBERS = ("quantile", "below_rate", "pinball_seconds", "pinball_by_length_seconds", "from_at", "to_at")


def upgrade() -> None:
    """Add the columns; models are fitted anew within minutes, so those of before are dropped."""
    op.execute("DELETE FROM latency_models")
    with op.batch_alter_table("latency_models") as table:
        for name in _NUMBERS:
            table.add_column(sa.Column(name, sa.Double))
        for name in ("added_r2", "typical"):
            table.add_column(sa.Column(name, _JSON, nullable=False))


def downgrade() -> None:
    """Drop the columns, and the models that the older version does not know."""
    op.execute("DELETE FROM latency_models")
    with op.batch_alter_table("latency_models") as table:
        for name in (*_NUMBERS, "added_r2", "typical"):
            table.drop_column(name)
