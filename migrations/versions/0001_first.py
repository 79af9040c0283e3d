"""The first tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _create_requests()
    _create_spans()
    _create_metric_series()
    _create_metric_samples()
    _create_misses()
    _create_suggestions()
    _create_latency_models()
    _create_experiments()
    _create_experiment_transitions()
    _create_experiment_intents()
    _create_experiment_looks()
    _create_route_policies()


def downgrade() -> None:
    """Drop all tables, children first."""
    for table in (
        "route_policies",
        "experiment_looks",
        "experiment_intents",
        "experiment_transitions",
        "experiments",
        "latency_models",
        "suggestions",
        "misses",
        "metric_samples",
        "metric_series",
        "spans",
        "requests",
    ):
        op.drop_table(table)


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Text()),
        sa.Column("span_id", sa.Text()),
        sa.Column("session", sa.Text()),
        sa.Column("tenant", sa.Text()),
        sa.Column("route", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("engine", sa.Text()),
        sa.Column("replica", sa.Text()),
        sa.Column("arrived_at", sa.Double()),
        sa.Column("status", sa.Text()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("output_tokens", sa.Integer()),
        sa.Column("cached_tokens", sa.Integer()),
        sa.Column("ttft_seconds", sa.Double()),
        sa.Column("ttft_client_seconds", sa.Double()),
        sa.Column("tpot_seconds", sa.Double()),
        sa.Column("itl_p50_seconds", sa.Double()),
        sa.Column("itl_p95_seconds", sa.Double()),
        sa.Column("itl_max_seconds", sa.Double()),
        sa.Column("queue_seconds", sa.Double()),
        sa.Column("prefill_seconds", sa.Double()),
        sa.Column("decode_seconds", sa.Double()),
        sa.Column("e2e_seconds", sa.Double()),
        sa.Column("preemptions", sa.Integer()),
        sa.Column("requests_in_flight", sa.Integer()),
        sa.Column("prompt_chars", sa.Integer()),
        sa.Column("prompt_entropy", sa.Double()),
        sa.Column("prompt_layout", sa.Text()),
        sa.Column("experiment", sa.Text()),
        sa.Column("arm", sa.Text()),
        sa.Column("warmup", sa.Boolean()),
        sa.Column("gateway_overhead_seconds", sa.Double()),
        sa.Column("causes", _JSON),
        sa.Column("sources", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_arrived_at"), "requests", ["arrived_at"])
    op.create_index(op.f("ix_requests_experiment_arm"), "requests", ["experiment", "arm"])
    op.create_index(op.f("ix_requests_route_arrived_at"), "requests", ["route", "arrived_at"])


def _create_spans() -> None:
    op.create_table(
        "spans",
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("span_id", sa.Text(), nullable=False),
        sa.Column("parent_span_id", sa.Text()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("service", sa.Text()),
        sa.Column("start_at", sa.Double(), nullable=False),
        sa.Column("end_at", sa.Double(), nullable=False),
        sa.Column("attributes", _JSON, nullable=False),
        sa.Column("resource", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("trace_id", "span_id", name=op.f("pk_spans")),
    )


def _create_metric_series() -> None:
    op.create_table(
        "metric_series",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_series")),
    )
    op.create_index(op.f("ix_metric_series_name"), "metric_series", ["name"])


def _create_metric_samples() -> None:
    op.create_table(
        "metric_samples",
        sa.Column("series_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"], ["metric_series.id"], name=op.f("fk_metric_samples_series_id")
        ),
        sa.PrimaryKeyConstraint("series_id", "at", name=op.f("pk_metric_samples")),
        sqlite_with_rowid=False,
    )


def _create_misses() -> None:
    op.create_table(
        "misses",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text()),
        sa.Column("message_index", sa.Integer()),
        sa.Column("char_start", sa.Integer()),
        sa.Column("char_end", sa.Integer()),
        sa.Column("value_kind", sa.Text()),
        sa.PrimaryKeyConstraint("request_id", "ordinal", name=op.f("pk_misses")),
        sqlite_with_rowid=False,
    )


def _create_suggestions() -> None:
    op.create_table(
        "suggestions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("risk", sa.Text(), nullable=False),
        sa.Column("evidence", _JSON, nullable=False),
        sa.Column("hit_rate_before", sa.Double(), nullable=False),
        sa.Column("hit_rate_after", sa.Double(), nullable=False),
        sa.Column("ttft_change_seconds", sa.Double()),
        sa.Column("tokens_saved_per_day", sa.Double(), nullable=False),
        sa.Column("change", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("dismissed_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suggestions")),
    )


def _create_latency_models() -> None:
    op.create_table(
        "latency_models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("features", _JSON, nullable=False),
        sa.Column("coefficients", _JSON, nullable=False),
        sa.Column("r2", sa.Double(), nullable=False),
        sa.Column("mae_seconds", sa.Double(), nullable=False),
        sa.Column("coverage_90", sa.Double()),
        sa.Column("error_quantiles", _JSON, nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("ranges", _JSON, nullable=False),
        sa.Column("fitted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_latency_models")),
    )


def _create_experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("arms", _JSON, nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("guardrails", _JSON, nullable=False),
        sa.Column("alpha", sa.Double(), nullable=False),
        sa.Column("warmup_requests", sa.Integer(), nullable=False),
        sa.Column("min_units", sa.Integer(), nullable=False),
        sa.Column("max_seconds", sa.Double(), nullable=False),
        sa.Column("slice_seconds", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text()),
        sa.Column("suggestion_id", sa.Text()),
        sa.Column("predicted", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("name", name=op.f("uq_experiments_name")),
    )


def _create_experiment_transitions() -> None:
    op.create_table(
        "experiment_transitions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name=op.f("fk_experiment_transitions_experiment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment_transitions")),
    )
    op.create_index(op.f("ix_experiment_transitions_experiment"), "experiment_transitions", ["experiment"])


def _create_experiment_intents() -> None:
    op.create_table(
        "experiment_intents",
        sa.Column("id", _ID, nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("params", _JSON, nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name=op.f("fk_experiment_intents_experiment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment_intents")),
    )
    op.create_index(op.f("ix_experiment_intents_experiment"), "experiment_intents", ["experiment"])


def _create_experiment_looks() -> None:
    op.create_table(
        "experiment_looks",
        sa.Column("id", _ID, nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reasons", _JSON, nullable=False),
        sa.Column("results", _JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name=op.f("fk_experiment_looks_experiment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment_looks")),
    )
    op.create_index(op.f("ix_experiment_looks_experiment"), "experiment_looks", ["experiment"])


def _create_route_policies() -> None:
    op.create_table(
        "route_policies",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("transforms", _JSON, nullable=False),
        sa.Column("experiment", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("since_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("route", name=op.f("pk_route_policies")),
    )
