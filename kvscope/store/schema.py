"""The tables, as the newest migration leaves them; a test holds the two against each other.

Times are Unix seconds in double precision. Nothing here names a dialect: what differs is a variant of a type.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.dialects.postgresql import JSONB
from typing_extensions import override

from kvscope.store import clean

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class StoredText(TypeDecorator[str]):
    """Text as it is stored: what no database holds is replaced, what is over ``limit`` is shortened.

    Bound values go through the same, so that a filter finds what a longer or odd text was stored as.
    """

    impl = Text
    cache_ok = True

    def __init__(self, limit: int = clean.TEXT_CHARS) -> None:
        super().__init__()
        self.limit = limit

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean.text(value, self.limit)


Key = StoredText(clean.KEY_CHARS)  # of indexed columns
Words = StoredText()
Json = JSON().with_variant(JSONB(), "postgresql")
Id = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows itself for INTEGER only

requests = Table(
    "requests",
    metadata,
    Column("request_id", Key, primary_key=True),
    Column("trace_id", Words),
    Column("span_id", Words),
    Column("session", Words),
    Column("tenant", Words),
    Column("route", Key),
    Column("model", Words),
    Column("engine", Words),
    Column("replica", Words),
    Column("arrived_at", Double),
    Column("status", Words),
    Column("finish_reason", Words),
    Column("prompt_tokens", Integer),
    Column("output_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("ttft_seconds", Double),
    Column("ttft_client_seconds", Double),
    Column("tpot_seconds", Double),
    Column("itl_p50_seconds", Double),
    Column("itl_p95_seconds", Double),
    Column("itl_max_seconds", Double),
    Column("queue_seconds", Double),
    Column("prefill_seconds", Double),
    Column("decode_seconds", Double),
    Column("e2e_seconds", Double),
    Column("preemptions", Integer),
    Column("requests_in_flight", Integer),
    Column("prompt_chars", Integer),
    Column("prompt_entropy", Double),
    Column("prompt_layout", Words),
    Column("experiment", Key),
    Column("arm", Key),
    Column("warmup", Boolean),
    Column("gateway_overhead_seconds", Double),
    Column("causes", Json),
    Column("sources", Json, nullable=False),
    Column("conflicts", Json),
    Index(None, "arrived_at"),
    Index(None, "route", "arrived_at"),
    Index(None, "experiment", "arm"),
)

# PostgreSQL keeps spans and samples in partitions by day; there `start_at` is part of the key of spans.
spans = Table(
    "spans",
    metadata,
    Column("trace_id", Key, primary_key=True),
    Column("span_id", Key, primary_key=True),
    Column("parent_span_id", Words),
    Column("name", Words, nullable=False),
    Column("service", Words),
    Column("start_at", Double, nullable=False),
    Column("end_at", Double, nullable=False),
    Column("attributes", Json, nullable=False),
    Column("resource", Json, nullable=False),
    Index(None, "start_at"),
)

# `id` is a hash of the other columns, so that a writer needs no look-up before it inserts samples.
metric_series = Table(
    "metric_series",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("engine", Words, nullable=False),
    Column("replica", Words, nullable=False),
    Column("name", Key, nullable=False),
    Column("labels", Json, nullable=False),
    Index(None, "name"),
)

metric_samples = Table(
    "metric_samples",
    metadata,
    Column("series_id", BigInteger, ForeignKey("metric_series.id"), primary_key=True, autoincrement=False),
    Column("at", Double, primary_key=True),
    Column("value", Double, nullable=False),
    sqlite_with_rowid=False,
)

# No foreign key: a request's misses may be known before its row is.
misses = Table(
    "misses",
    metadata,
    Column("request_id", Key, primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("cause", Words, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("role", Words),
    Column("message_index", Integer),
    Column("char_start", Integer),
    Column("char_end", Integer),
    Column("value_kind", Words),
    sqlite_with_rowid=False,
)

# Only where someone asked for it. No foreign key, for the same reason; times are those of a log's own clock.
prompt_blocks = Table(
    "prompt_blocks",
    metadata,
    Column("request_id", Key, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("block_size", Integer, nullable=False),
    Column("hashes", LargeBinary, nullable=False),  # 64 bits each, little-endian
    Column("plain", Boolean, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("output_tokens", Integer),
    Column("answer_hashed", Boolean, nullable=False),
    Column("cached_tokens", Integer),
    Column("lookup", Boolean, nullable=False),
    Column("at", Double),
    Column("finished_at", Double),
)

# What retention removed of each engine's requests since its counters began: sums stay comparable with them.
pruned_requests = Table(
    "pruned_requests",
    metadata,
    Column("engine", Key, primary_key=True),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("unknown_requests", BigInteger, nullable=False),
)

# The minutes whose requests have changed since they were rolled up; `mark` is another with every change.
rollup_changes = Table(
    "rollup_changes",
    metadata,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("mark", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# `key` is a hash of the columns from `route` to `arm`, which may be null.
rollups = Table(
    "rollups",
    metadata,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("route", Key),
    Column("tenant", Words),
    Column("model", Words),
    Column("experiment", Key),
    Column("arm", Key),
    Column("requests", BigInteger, nullable=False),
    Column("known_requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("causes", Json, nullable=False),
    Column("ttft_requests", BigInteger, nullable=False),
    Column("ttft_seconds", Double, nullable=False),
    Column("tpot_requests", BigInteger, nullable=False),
    Column("tpot_seconds", Double, nullable=False),
    Column("ttft_sketch", Json, nullable=False),
    Column("ttft_client_sketch", Json, nullable=False),
    Column("conflicts", Json),
    sqlite_with_rowid=False,
)

# Of the requests of a minute that missed tokens for a cause.
rollup_causes = Table(
    "rollup_causes",
    metadata,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("cause", Words, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("known_requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("ttft_requests", BigInteger, nullable=False),
    Column("ttft_seconds", Double, nullable=False),
    sqlite_with_rowid=False,
)

# `key` is a hash of the columns from `route` to `value_kind`, which may be null.
rollup_misses = Table(
    "rollup_misses",
    metadata,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("route", Key),
    Column("cause", Words, nullable=False),
    Column("role", Words),
    Column("message_index", Integer),
    Column("value_kind", Words),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("example_tokens", Integer, nullable=False),
    Column("example_request_id", Key, nullable=False),
    Column("example_ordinal", Integer, nullable=False),
    Column("example_char_start", Integer),
    Column("example_char_end", Integer),
    sqlite_with_rowid=False,
)

suggestions = Table(
    "suggestions",
    metadata,
    Column("id", Key, primary_key=True),
    Column("kind", Words, nullable=False),
    Column("route", Key, nullable=False),
    Column("risk", Words, nullable=False),
    Column("evidence", Json, nullable=False),
    Column("hit_rate_before", Double, nullable=False),
    Column("hit_rate_after", Double, nullable=False),
    Column("ttft_change_seconds", Double),
    Column("tokens_saved_per_day", Double),
    Column("change", Json, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("dismissed_at", Double),
)

latency_models = Table(
    "latency_models",
    metadata,
    Column("name", Key, primary_key=True),
    Column("target", Words, nullable=False),
    Column("features", Json, nullable=False),
    Column("coefficients", Json, nullable=False),
    Column("r2", Double, nullable=False),
    Column("mae_seconds", Double, nullable=False),
    Column("coverage_90", Double),
    Column("error_quantiles", Json, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("ranges", Json, nullable=False),
    Column("fitted_at", Double, nullable=False),
    Column("quantile", Double),
    Column("below_rate", Double),
    Column("pinball_seconds", Double),
    Column("pinball_by_length_seconds", Double),
    Column("added_r2", Json, nullable=False),
    Column("typical", Json, nullable=False),
    Column("from_at", Double),
    Column("to_at", Double),
)

experiments = Table(
    "experiments",
    metadata,
    Column("id", Key, primary_key=True),
    Column("name", Key, nullable=False, unique=True),
    Column("route", Key, nullable=False),
    Column("arms", Json, nullable=False),
    Column("metric", Words, nullable=False),
    Column("unit", Words, nullable=False),
    Column("guardrails", Json, nullable=False),
    Column("alpha", Double, nullable=False),
    Column("warmup_requests", Integer, nullable=False),
    Column("min_units", Integer, nullable=False),
    Column("max_seconds", Double, nullable=False),
    Column("slice_seconds", Double, nullable=False),
    Column("state", Words, nullable=False),
    Column("verdict", Words),
    Column("suggestion_id", Key),
    Column("predicted", Json, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
)

experiment_transitions = Table(
    "experiment_transitions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("experiment", Key, ForeignKey("experiments.id"), nullable=False, index=True),
    Column("at", Double, nullable=False),
    Column("state", Words, nullable=False),
    Column("actor", Words, nullable=False),
    Column("reason", Words, nullable=False),
)

experiment_intents = Table(
    "experiment_intents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("experiment", Key, ForeignKey("experiments.id"), nullable=False, index=True),
    Column("action", Words, nullable=False),
    Column("actor", Words, nullable=False),
    Column("at", Double, nullable=False),
    Column("params", Json, nullable=False),
    Column("outcome", Words),
)

experiment_looks = Table(
    "experiment_looks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("experiment", Key, ForeignKey("experiments.id"), nullable=False, index=True),
    Column("at", Double, nullable=False),
    Column("verdict", Words, nullable=False),
    Column("reasons", Json, nullable=False),
    Column("results", Json, nullable=False),
)

route_policies = Table(
    "route_policies",
    metadata,
    Column("route", Key, primary_key=True),
    Column("transforms", Json, nullable=False),
    Column("experiment", Key),
    Column("actor", Words, nullable=False),
    Column("since_at", Double, nullable=False),
)
