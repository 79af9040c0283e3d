"""Salted block hashes of prompts, for replays from the store."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "prompt_blocks",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("block_size", sa.Integer(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.Column("plain", sa.Boolean(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer()),
        sa.Column("answer_hashed", sa.Boolean(), nullable=False),
        sa.Column("cached_tokens", sa.Integer()),
        sa.Column("lookup", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_prompt_blocks")),
    )


def downgrade() -> None:
    """Drop the table; the files that were imported tell it again."""
    op.drop_table("prompt_blocks")
