"""Which source told otherwise: by field of a request, and summed up by minute."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Add the columns; of what is stored already no conflict is known."""
    op.add_column("requests", sa.Column("conflicts", _JSON))
    op.add_column("rollups", sa.Column("conflicts", _JSON))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("rollups", "conflicts")
    op.drop_column("requests", "conflicts")
