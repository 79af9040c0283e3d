"""What retention needs: a sum of the requests that were removed, and spans in the order of time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the sums and the index."""
    op.create_table(
        "pruned_requests",
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("unknown_requests", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("engine", name=op.f("pk_pruned_requests")),
    )
    op.create_index(op.f("ix_spans_start_at"), "spans", ["start_at"])


def downgrade() -> None:
    """Remove both; the sums of removed requests are lost."""
    op.drop_index(op.f("ix_spans_start_at"), "spans")
    op.drop_table("pruned_requests")
