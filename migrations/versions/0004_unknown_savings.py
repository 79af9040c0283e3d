"""Suggestions from requests without times: how many tokens a day they would save is not known."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let the tokens saved a day be unknown."""
    with op.batch_alter_table("suggestions") as table:
        table.alter_column("tokens_saved_per_day", existing_type=sa.Double(), nullable=True)


def downgrade() -> None:
    """Write 0 for what is not known, as it was written before."""
    op.execute("UPDATE suggestions SET tokens_saved_per_day = 0 WHERE tokens_saved_per_day IS NULL")
    with op.batch_alter_table("suggestions") as table:
        table.alter_column("tokens_saved_per_day", existing_type=sa.Double(), nullable=False)
