"""PostgreSQL: spans and samples by day. What is there becomes the partition of all other days, uncopied."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_SPANS_UP = """
ALTER TABLE spans RENAME TO spans_default;
ALTER INDEX ix_spans_start_at RENAME TO ix_spans_default_start_at;
ALTER TABLE spans_default DROP CONSTRAINT pk_spans;
ALTER TABLE spans_default ADD CONSTRAINT pk_spans_default PRIMARY KEY (trace_id, span_id, start_at);
CREATE TABLE spans (
    LIKE spans_default,
    CONSTRAINT pk_spans PRIMARY KEY (trace_id, span_id, start_at)
) PARTITION BY RANGE (start_at);
CREATE INDEX ix_spans_start_at ON spans (start_at);
ALTER TABLE spans ATTACH PARTITION spans_default DEFAULT;
"""
_SAMPLES_UP = """
ALTER TABLE metric_samples RENAME TO metric_samples_default;
ALTER TABLE metric_samples_default RENAME CONSTRAINT pk_metric_samples TO pk_metric_samples_default;
CREATE TABLE metric_samples (
    LIKE metric_samples_default,
    CONSTRAINT pk_metric_samples PRIMARY KEY (series_id, at),
    CONSTRAINT fk_metric_samples_series_id FOREIGN KEY (series_id) REFERENCES metric_series (id)
) PARTITION BY RANGE (at);
ALTER TABLE metric_samples ATTACH PARTITION metric_samples_default DEFAULT;
"""
_SPANS_DOWN = """
ALTER TABLE spans RENAME TO spans_by_day;
ALTER TABLE spans_by_day RENAME CONSTRAINT pk_spans TO pk_spans_by_day;
ALTER INDEX ix_spans_start_at RENAME TO ix_spans_by_day_start_at;
CREATE TABLE spans (LIKE spans_by_day, CONSTRAINT pk_spans PRIMARY KEY (trace_id, span_id));
INSERT INTO spans SELECT * FROM spans_by_day ON CONFLICT DO NOTHING;
CREATE INDEX ix_spans_start_at ON spans (start_at);
DROP TABLE spans_by_day;
"""
_SAMPLES_DOWN = """
ALTER TABLE metric_samples RENAME TO metric_samples_by_day;
ALTER TABLE metric_samples_by_day RENAME CONSTRAINT pk_metric_samples TO pk_metric_samples_by_day;
CREATE TABLE metric_samples (
    LIKE metric_samples_by_day,
    CONSTRAINT pk_metric_samples PRIMARY KEY (series_id, at),
    CONSTRAINT fk_metric_samples_series_id FOREIGN KEY (series_id) REFERENCES metric_series (id)
);
INSERT INTO metric_samples SELECT * FROM metric_samples_by_day;
DROP TABLE metric_samples_by_day;
"""


def upgrade() -> None:
    """Put partitioned tables around those that are there; of days to come the agent makes partitions."""
    _run(_SPANS_UP + _SAMPLES_UP)


def downgrade() -> None:
    """Copy all rows back into plain tables."""
    _run(_SPANS_DOWN + _SAMPLES_DOWN)


def _run(script: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for statement in script.split(";\n"):
            if statement.strip():
                op.execute(statement)
