"""Runs migrations on the connection that `kvscope.store.migrate` hands in, within its transaction."""

from alembic import context

_attributes = context.config.attributes

context.configure(
    connection=_attributes["connection"],
    target_metadata=_attributes["metadata"],
    version_table=_attributes["version_table"],
    render_as_batch=True,  # SQLite cannot alter most things; Alembic copies the table instead
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
