"""Parses and checks the options of the source and the sink; refuses unknown options by name.

Names are case-insensitive, as everywhere in Spark; messages use the spelling of the documentation.
"""

import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

from headrace.client.cluster import ClientSettings
from headrace.client.security import Security, parse_security
from headrace.model.errors import ConfigError
from headrace.model.spelling import did_you_mean
from headrace.spark import kafka_settings
from headrace.spark.failures import BadOption
from headrace.spark.kafka_settings import READ, WRITE
from headrace.spark.offsets import Limit, check_limits, parse_ending, parse_starting
from headrace.spark.subscription import Subscription, parse_subscription
from headrace.spark.value_format import VALUE_OPTIONS, ValueFormat, parse_value_format

log = logging.getLogger("headrace.spark")

_SUBSCRIPTION = ("subscribe", "subscribePattern", "assign")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "limitBy",
    "query.checkpoint", "query.audit",
)  # fmt: skip
BATCH_ONLY = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
READ_OPTIONS = (
    *_SUBSCRIPTION, *_STREAM_ONLY, *BATCH_ONLY, *VALUE_OPTIONS, "columns",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders", "minPartitions",
    "maxRecordsPerPartition", "minRecordsPerTask", "groupIdPrefix", "pushFilters",
    "timestampDisorder", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)  # fmt: skip
WRITE_OPTIONS = (
    "topic", "includeHeaders", "delivery", "delivery.id", "delivery.batch", "delivery.markerTopic",
    "delivery.stagingTopic", "delivery.messageBytesMax",
)  # fmt: skip
# Options that Spark itself adds.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "paths"})

_UNIT_MS = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000
}  # fmt: skip


class FetchSettings(NamedTuple):
    """The settings of a task that reads one range."""

    read_committed: bool = False
    check_crcs: bool = True
    size_max: int = 4 << 20
    size_min: int = 1
    wait_ms_max: int = 500
    poll_timeout_ms: int = 120_000
    fail_on_data_loss: bool = True


class SourceOptions(NamedTuple):
    client: ClientSettings
    subscription: Subscription
    starting: Limit
    ending: Limit
    fetch: FetchSettings
    value: ValueFormat
    include_headers: bool
    columns: tuple[str, ...]
    partitions_min: int | None
    task_rows_max: int | None
    task_rows_min: int | None
    trigger_rows_max: int | None
    trigger_rows_min: int | None
    trigger_delay_ms_max: int
    limits_by_time: bool  # partitions advance together, by the timestamps of their records
    group_id: str
    group_id_prefix: str
    offset_tries: int
    offset_retry_ms: int
    push_filters: bool
    checkpoint: str  # of the query; the rows have the watermark of their batch
    audit_name: str  # under which the counts of what is read are published
    disorder_ms: int | None  # how much older than an earlier record a record may be; None: unknown


class SinkOptions(NamedTuple):
    client: ClientSettings
    topic: str
    exactly_once: bool
    delivery_id: str  # names the transactions of a batch write
    delivery_batch: int | None  # with the ID: names a write that takes effect once
    marker_topic: str
    staging_topic: str
    message_size_max: int
    acks: int
    idempotent: bool
    codec: int
    batch_size: int
    row_size_max: int
    delivery_timeout_ms: int
    block_ms_max: int
    transaction_timeout_ms: int
    checkpoint: str


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    plain, settings = _split_options(options, READ, READ_OPTIONS)
    for name in BATCH_ONLY if streaming else ():
        if name.lower() in plain:
            raise BadOption(f"{name} is only for batch queries; a stream has no end")
    for name in () if streaming else _STREAM_ONLY:
        if name.lower() in plain:
            log.warning("%s has no effect in a batch query", name)
    starting = parse_starting(plain, streaming=streaming)
    ending = parse_ending(plain)
    if not streaming:
        check_limits(starting, ending)
    trigger_rows_max = _positive(plain, "maxOffsetsPerTrigger")
    trigger_rows_min = _positive(plain, "minOffsetsPerTrigger")
    if trigger_rows_max and trigger_rows_min and trigger_rows_min > trigger_rows_max:
        raise BadOption(
            f"minOffsetsPerTrigger ({trigger_rows_min}) is above "
            f"maxOffsetsPerTrigger ({trigger_rows_max})"
        )
    if "query.audit" in plain and "query.checkpoint" not in plain:
        raise BadOption("query.audit needs query.checkpoint, which tells the number of a batch")
    value = parse_value_format(plain)
    subscription = parse_subscription(plain)
    if value.on_bad == "topic":
        subscription = subscription.without(value.bad_topic)
    if "group.id" in settings and "groupidprefix" in plain:
        log.warning("groupIdPrefix has no effect: kafka.group.id names the whole group")
    return SourceOptions(
        client=_client(settings, api_timeout="kafka.default.api.timeout.ms"),
        subscription=subscription,
        starting=starting,
        ending=ending,
        fetch=_fetch_settings(plain, settings),
        value=value,
        include_headers=_bool(plain, "includeHeaders", False),
        columns=tuple(c.strip() for c in plain.get("columns", "").split(",") if c.strip()),
        partitions_min=_positive(plain, "minPartitions"),
        task_rows_max=_positive(plain, "maxRecordsPerPartition"),
        task_rows_min=_positive(plain, "minRecordsPerTask"),
        trigger_rows_max=trigger_rows_max,
        trigger_rows_min=trigger_rows_min,
        trigger_delay_ms_max=_duration_ms(plain, "maxTriggerDelay", "15m"),
        limits_by_time=_choice(plain, "limitBy", ("backlog", "timestamp")) == "timestamp",
        group_id=settings.get("group.id", ""),
        group_id_prefix=plain.get("groupidprefix", "headrace-spark"),
        offset_tries=_positive(plain, "fetchOffset.numRetries") or 3,
        offset_retry_ms=_positive(plain, "fetchOffset.retryIntervalMs") or 10,
        push_filters=_bool(plain, "pushFilters", False),
        checkpoint=plain.get("query.checkpoint", ""),
        audit_name=plain.get("query.audit", ""),
        disorder_ms=_duration_ms(plain, "timestampDisorder", "0")
        if "timestampdisorder" in plain
        else None,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    plain, settings = _split_options(options, WRITE, WRITE_OPTIONS)
    delivery = plain.get("delivery", "at-least-once").lower()
    if delivery not in ("at-least-once", "exactly-once"):
        raise BadOption(f"delivery is {delivery!r}; use at-least-once or exactly-once")
    exactly_once = delivery == "exactly-once"
    acks = {"all": -1, "-1": -1, "1": 1, "0": 0}.get(settings.get("acks", "all"))
    if acks is None:
        raise BadOption(f"kafka.acks is {settings['acks']!r}; use all, 1 or 0")
    if exactly_once and acks != -1:
        raise BadOption("kafka.acks must be all with delivery=exactly-once")
    codec_name = settings.get("compression.type", "none")
    if codec_name not in _CODECS:
        raise BadOption(
            f"kafka.compression.type is {codec_name!r}; use one of {', '.join(_CODECS)}"
        )
    delivery_timeout_ms = _number(settings, "kafka.delivery.timeout.ms", 120_000)
    return SinkOptions(
        client=_client(settings, api_timeout="kafka.max.block.ms"),
        topic=plain.get("topic", "").strip(),
        exactly_once=exactly_once,
        delivery_id=plain.get("delivery.id", ""),
        delivery_batch=_delivery_batch(plain),
        marker_topic=plain.get("delivery.markertopic", "headrace-spark-markers"),
        staging_topic=plain.get("delivery.stagingtopic", "headrace-spark-staging"),
        message_size_max=_positive(plain, "delivery.messageBytesMax") or 32 << 20,
        acks=acks,
        idempotent=_bool(settings, "enable.idempotence", True) and acks == -1,
        codec=_CODECS.index(codec_name),
        batch_size=_number(settings, "kafka.batch.size", 1_000_000),
        row_size_max=_number(settings, "kafka.max.request.size", 1 << 20),
        delivery_timeout_ms=delivery_timeout_ms,
        block_ms_max=_number(settings, "kafka.max.block.ms", 60_000),
        transaction_timeout_ms=_number(settings, "kafka.transaction.timeout.ms", 60_000),
        checkpoint=options.get("checkpointLocation") or options.get("checkpointlocation") or "",
    )


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _delivery_batch(plain: Mapping[str, str]) -> int | None:
    text = plain.get("delivery.batch")
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise BadOption(f"delivery.batch must be a whole number, not {text!r}")
    if "delivery.id" not in plain:
        raise BadOption(
            "delivery.batch needs delivery.id, the name under which batches are numbered"
        )
    return int(text)


def _split_options(
    options: Mapping[str, str], purpose: str, known: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """The source's or sink's options by lower-case name, and Kafka's settings that are used."""
    plain: dict[str, str] = {}
    kafka: dict[str, str] = {}
    librdkafka: dict[str, str] = {}
    names = {name.lower(): name for name in known}
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith("kafka."):
            kafka[lower.removeprefix("kafka.")] = value
        elif lower.startswith("librdkafka."):
            librdkafka[lower.removeprefix("librdkafka.")] = value
        elif lower in names:
            plain[lower] = value
        elif lower not in _SPARKS_OWN:
            raise _unknown(name, purpose)
    used, warnings = kafka_settings.translate(purpose, kafka, librdkafka)
    for warning in warnings:
        log.warning("%s", warning)
    if "bootstrap.servers" not in used:
        raise BadOption("kafka.bootstrap.servers is missing: give host:port of one or more brokers")
    return plain, used


def _unknown(name: str, purpose: str) -> BadOption:
    others = WRITE_OPTIONS if purpose == READ else READ_OPTIONS
    if name.lower() in (other.lower() for other in others):
        return BadOption(f"{name} is an option for {'writing' if purpose == READ else 'reading'}")
    if any(name.lower() in table for table in (*kafka_settings.USED.values(),)):
        return BadOption(f"{name} is a setting of Kafka's client: use kafka.{name}")
    doing, known = ("reading", READ_OPTIONS) if purpose == READ else ("writing", WRITE_OPTIONS)
    settings = (f"kafka.{setting}" for setting in kafka_settings.USED[purpose])
    return BadOption(
        f"there is no option {name!r} for {doing}{did_you_mean(name, [*known, *settings])}; "
        "docs/spark.md lists all options"
    )


def _client(settings: Mapping[str, str], *, api_timeout: str) -> ClientSettings:
    """``api_timeout`` names the setting that limits the time of retries."""
    default = ClientSettings(bootstrap_servers=settings["bootstrap.servers"])
    return default._replace(
        security=_security(settings),
        client_id=settings.get("client.id") or default.client_id,
        request_timeout_ms=_number(
            settings, "kafka.request.timeout.ms", default.request_timeout_ms
        ),
        api_timeout_ms=_number(settings, api_timeout, default.api_timeout_ms),
        retry_backoff_ms=_number(settings, "kafka.retry.backoff.ms", default.retry_backoff_ms),
        retry_backoff_ms_max=_number(
            settings, "kafka.retry.backoff.max.ms", default.retry_backoff_ms_max
        ),
        metadata_age_ms_max=_number(
            settings, "kafka.metadata.max.age.ms", default.metadata_age_ms_max
        ),
        rack=settings.get("client.rack", ""),
    )


def _security(settings: Mapping[str, str]) -> Security:
    try:
        return parse_security(settings, prefix="kafka.")
    except ConfigError as wrong:
        raise BadOption(str(wrong)) from wrong


def _fetch_settings(plain: Mapping[str, str], settings: Mapping[str, str]) -> FetchSettings:
    isolation = settings.get("isolation.level", "read_uncommitted").lower()
    if isolation not in ("read_uncommitted", "read_committed"):
        raise BadOption(
            f"kafka.isolation.level is {isolation!r}; use read_uncommitted or read_committed"
        )
    default = FetchSettings()
    size_max = min(
        _number(settings, "kafka.max.partition.fetch.bytes", default.size_max),
        _number(settings, "kafka.fetch.max.bytes", 50 << 20),
    )
    return FetchSettings(
        read_committed=isolation == "read_committed",
        check_crcs=_bool(settings, "check.crcs", True),
        size_max=max(1, size_max),
        size_min=_number(settings, "kafka.fetch.min.bytes", default.size_min),
        wait_ms_max=_number(settings, "kafka.fetch.max.wait.ms", default.wait_ms_max),
        poll_timeout_ms=_positive(plain, "kafkaConsumer.pollTimeoutMs") or default.poll_timeout_ms,
        fail_on_data_loss=_bool(plain, "failOnDataLoss", True),
    )


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadOption(f"{name} must be a positive whole number, not {text!r}")
    return int(text)


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name.removeprefix("kafka."))
    if text is None:
        return default
    if not text.strip().isdecimal():
        raise BadOption(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _choice(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """One of the known values; the first if the option is not given."""
    text = options.get(name.lower(), known[0]).strip().lower()
    if text not in known:
        raise BadOption(f"{name} is {text!r}; use {' or '.join(known)}")
    return text


def _bool(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise BadOption(f"{name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    text = options.get(name.lower(), default).strip().lower()
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text)
    if found is None or (found[2] or "ms") not in _UNIT_MS:
        raise BadOption(f"{name} must be a time like 90s, 15m or 1h, not {text!r}")
    return int(int(found[1]) * _UNIT_MS[found[2] or "ms"])
