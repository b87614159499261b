"""Why a log refuses a produced batch for its size or its time, with the limit that it exceeds.

Apart from ``Log``, which compares every batch with these limits and calls this module beyond them.
"""

from headrace.model.config import TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.model.units import duration
from headrace.records.batch import LENGTH_AT, LOG_OVERHEAD, check_produced


def refuse_size(records: memoryview, config: TopicConfig, produce_version: int | None) -> Rejected:
    """The error of a batch that is too large. ``produce_version`` is None if no client sent it."""
    size = len(records)
    if produce_version is not None and size >= LOG_OVERHEAD:
        length = int.from_bytes(records[LENGTH_AT:LOG_OVERHEAD], "big", signed=True)
        if length + LOG_OVERHEAD != size:
            check_produced(records, produce_version)  # several batches: the more serious error
    if size > config.max_message_bytes:
        return Rejected(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{size:,} bytes; max.message.bytes is {config.max_message_bytes:,}",
        )
    return Rejected(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"{size:,} bytes; segment.bytes is {config.segment_bytes:,}",
    )


def refuse_timestamp(timestamp: Millis, now: Millis, config: TopicConfig) -> Rejected:
    """The error of a batch whose largest timestamp is too far from the broker's time."""
    if timestamp > now:
        side, name, allowed_ms = "ahead of", "after", config.message_timestamp_after_max_ms
    else:
        side, name, allowed_ms = "behind", "before", config.message_timestamp_before_max_ms
    return Rejected(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {timestamp} is {duration(abs(timestamp - now))} {side} the broker; "
        f"message.timestamp.{name}.max.ms allows {duration(allowed_ms)}",
    )
