"""Compaction in the broker: choose a log, run the child process, swap in its output.

    summarize    the input of ``core.cleaning`` for one log
    flush        what is cleaned is below the recovery point on disk, because recovery takes a
                 gap above it for records that a power failure took
    child        ``compaction.cleaner`` in a process of its own, one log at a time
    swap         ``swap.replace_segments`` installs each cleaned group on the loop's thread,
                 between two requests; readers keep the files that they have open
    checkpoint   ``cleaner-offset-checkpoint`` of the log directory records the progress

Meanwhile the log changes: it grows, retention may delete segments, a follower may truncate it, the
topic may be deleted. The child does not notice. Before each swap the broker checks that the log
still has the segments that the child read; if not, it discards the output and tries again later.
"""

import asyncio
import errno
import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from headrace.core.cleaning import (
    DirtyRange,
    LastOfProducer,
    LogSummary,
    SegmentSummary,
    dirtiest,
    measure,
)
from headrace.model.config import BrokerConfig
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, Position, TopicPartition
from headrace.records.batch import HEADER_SIZE, BadBatch, read_header
from headrace.storage.compaction.job import Job
from headrace.storage.compaction.swap import discard_cleaned, replace_segments
from headrace.storage.files import OpenFile, read_exactly
from headrace.storage.log import Log
from headrace.storage.log_retention import learn_times, segment_facts
from headrace.world.files import O_RDONLY
from headrace.world.jobs import ChildJob

_log = logging.getLogger("headrace.compaction")

_LOGS_PER_STEP = 50
_JOB = "headrace.storage.compaction.cleaner"
_NICENESS = 19  # the lowest priority: the broker goes first
_NO_LAG_LIMIT_MS = 2**63 - 1


class CleanerSettings(NamedTuple):
    buffer_size: int = 128 << 20
    load_factor: float = 0.9
    bytes_per_second: float = 1.7976931348623157e308

    @classmethod
    def of(cls, config: BrokerConfig) -> "CleanerSettings":
        # Kafka divides the buffer among log.cleaner.threads; here one child uses all of it.
        return cls(
            config.int("log.cleaner.dedupe.buffer.size"),
            config.float("log.cleaner.io.buffer.load.factor"),
            config.float("log.cleaner.io.max.bytes.per.second"),
        )


class Cleaned(NamedTuple):
    """The result of one cleaning. Sizes are those of the cleaned segments, before and after."""

    topic_partition: TopicPartition
    cleaned_end: Offset
    size_before: int
    size_after: int
    records_read: int
    records_kept: int


class ChildDied(Exception):
    """The child could not be started, was killed, or met a bug."""


class LogCleaner:
    """Cleans the dirtiest log; the broker calls it periodically."""

    def __init__(self) -> None:
        # Logs with damaged files. Only a restart checks them and makes them cleanable again. Keyed
        # with the log, because a re-created topic has another one.
        self.uncleanable: dict[TopicPartition, Log] = {}

    async def clean_dirtiest(
        self, logs: Iterable[tuple[Log, Offset]], settings: CleanerSettings, now: Millis
    ) -> Cleaned | None:
        """One round: None if no log is due, or if the one chosen could not be cleaned.

        Each log comes with its stable end (exclusive): the last stable offset,
        which is never beyond the high watermark.
        """
        candidates: dict[Log, tuple[DirtyRange, float]] = {}
        for number, (log, stable_end) in enumerate(logs, 1):
            if number % _LOGS_PER_STEP == 0:
                await asyncio.sleep(0)
            if self._may_clean(log):
                await learn_times(log)
            if self._may_clean(log):
                try:
                    dirt = measure(summarize(log, stable_end), now)
                except Rejected as later:
                    _log.info("%s: not compacted in this round: %s", log.topic_partition, later)
                except Corrupt as damage:
                    self._give_up(log, damage)
                except OSError as error:
                    log.directory.partition_failed(error)
                else:
                    candidates[log] = dirt, log.config.min_cleanable_dirty_ratio
        chosen = dirtiest(candidates)
        if chosen is None:
            return None
        return await self._clean(chosen, candidates[chosen][0], settings, now)

    def _may_clean(self, log: Log) -> bool:
        return (
            "compact" in log.config.cleanup_policy
            and not log.closed
            and log.offline is None
            and self.uncleanable.get(log.topic_partition) is not log
        )

    async def _clean(
        self, log: Log, dirt: DirtyRange, settings: CleanerSettings, now: Millis
    ) -> Cleaned | None:
        try:
            return await clean(log, dirt, settings, now)
        except Rejected as given_up:
            _log.info("%s. Compaction will retry", given_up)
        except ChildDied as death:
            _log.error("%s. Compaction will retry", death)
        except Corrupt as damage:
            self._give_up(log, damage)
        except OSError as error:
            if not log.closed:
                log.directory.partition_failed(error)
        return None

    def _give_up(self, log: Log, damage: Corrupt) -> None:
        self.uncleanable[log.topic_partition] = log
        _log.error(
            "Stopped compacting %s: %s. Restart the broker to check and repair the log",
            log.topic_partition,
            damage,
        )


def summarize(log: Log, stable_end: Offset) -> LogSummary:
    config = log.config
    max_lag_ms = config.max_compaction_lag_ms
    facts = segment_facts(log)
    return LogSummary(
        [
            SegmentSummary(
                segment.base_offset,
                segment.size,
                first_timestamp=_first_timestamp(log, segment.base_offset)
                if max_lag_ms < _NO_LAG_LIMIT_MS
                else -1,
                largest_timestamp=segment.largest_timestamp,
            )
            for segment in facts
        ],
        log.log_start,
        log.log_end,
        stable_end,
        log.directory.offsets.cleaned_end(log.topic_partition),
        config.min_compaction_lag_ms,
        max_lag_ms,
    )


async def clean(log: Log, dirt: DirtyRange, settings: CleanerSettings, now: Millis) -> Cleaned:
    """Compact the ``dirt`` of ``log``; returns when all output is swapped in and checkpointed.

    Raises Rejected if the log changed meanwhile, Corrupt if the child found a damaged batch,
    OSError if a disk failed, ChildDied. If cancelled, it ends the child. In all these cases groups
    that were swapped in stay. That is harmless: the checkpoint has not moved.
    """
    job = job_for(log, dirt, settings, now)
    directory = str(log.path)
    started_at = asyncio.get_running_loop().time()
    _log.info(
        "%s: compacting offsets %d to %d (%.0f %% of %d bytes dirty)",
        log.topic_partition,
        dirt.first_dirty,
        dirt.clean_end,
        100 * dirt.ratio,
        dirt.clean_size + dirt.dirty_size,
    )
    cut_count = log.flusher.cut_count
    await _flush(log, dirt.clean_end)
    try:
        child = await log.directory.world.jobs.start(_JOB, niceness=_NICENESS)
    except OSError as limit:  # not a fault of the disk
        raise ChildDied(
            f"cannot start a process to compact {log.topic_partition}: {limit}"
        ) from limit
    try:
        done, size_before, size_after = await _follow(log, job, child, cut_count)
    finally:
        await child.kill()
        # Files that were swapped in have other names by now; on success none is left.
        await asyncio.to_thread(discard_cleaned, log.directory.files, directory)
    if log.closed:
        raise _changed(log)
    result = Cleaned(
        log.topic_partition,
        Offset(done["cleaned_end"]),
        size_before,
        size_after,
        done["records_read"],
        done["records_kept"],
    )
    offsets = log.directory.offsets
    offsets.set_cleaned_end(log.topic_partition, result.cleaned_end)
    await asyncio.to_thread(offsets.write_job())
    _log.info(
        "%s: compacted up to offset %d in %.1f s: %d of %d records kept, %d of %d bytes",
        log.topic_partition,
        result.cleaned_end,
        asyncio.get_running_loop().time() - started_at,
        result.records_kept,
        result.records_read,
        size_after,
        size_before,
    )
    if done["batches_unreadable"]:
        _log.warning(
            "%s: kept %d batches unchanged because their records are unreadable; "
            "headrace.validate.records=true rejects such batches when they are produced",
            log.topic_partition,
            done["batches_unreadable"],
        )
    return result


async def _flush(log: Log, clean_end: int) -> None:
    """Move the recovery point to ``clean_end`` at least, also on disk. Raises Rejected."""
    flusher, offsets = log.flusher, log.directory.offsets
    await asyncio.to_thread(flusher.flush_closed)
    if not log.closed and not offsets.is_recovery_point_written(
        log.topic_partition, Offset(clean_end)
    ):
        offsets.set_recovery_point(log.topic_partition, flusher.recovery_point)
        await asyncio.to_thread(offsets.write_job())
    if log.closed or not offsets.is_recovery_point_written(log.topic_partition, Offset(clean_end)):
        raise Rejected(
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            f"{log.topic_partition}: could not be flushed up to offset {clean_end} for compaction",
        )


async def _follow(
    log: Log, job: Job, child: ChildJob, cut_count: int
) -> tuple[dict[str, Any], int, int]:
    """Send the child its job and handle its events until it is done."""
    with suppress(ConnectionError):  # it died at once, which ``_next_event`` reports
        await child.send(job.to_json().encode())
    sizes = {segment.base_offset: segment.size for segment in job.segments}
    whole = sum(size for base, size in sizes.items() if base < job.clean_end)
    size_before = size_after = 0
    while True:
        event = await _next_event(log, child)
        if "cleaned" in event:
            replaced = event["replaces"]
            if log.closed or log.flusher.cut_count != cut_count:
                raise _changed(log)
            replace_segments(log, [Offset(base) for base in replaced], Offset(event["cleaned"]))
            size_before += sum(sizes[base] for base in replaced)
            size_after += event["size"]
        elif "progress" in event:
            _log.info(
                "%s: compaction has read %d MiB of about %d",
                log.topic_partition,
                event["progress"] >> 20,
                (whole + sum(sizes.values())) >> 20,
            )
        elif "done" in event:
            return event["done"], size_before, size_after
        else:
            _raise_failure(log, event["failed"])


async def _next_event(log: Log, child: ChildJob) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(await child.receive())
    except EOFError:
        raise ChildDied(
            f"the process that compacts {log.topic_partition} died; see its message on stderr"
        ) from None
    return event


def _raise_failure(log: Log, failure: dict[str, Any]) -> NoReturn:
    if log.closed or failure.get("errno") == errno.ENOENT:
        raise _changed(log)  # the topic or a segment was deleted
    if "corrupt" in failure:
        raise Corrupt(failure["corrupt"])
    raise OSError(failure["errno"], failure["message"])


def _changed(log: Log) -> Rejected:
    return Rejected(
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        f"{log.topic_partition}: its segments changed during compaction",
    )


def job_for(log: Log, dirt: DirtyRange, settings: CleanerSettings, now: Millis) -> Job:
    config = log.config
    return Job(
        directory=str(log.path),
        segments=[
            SegmentSummary(segment.base_offset, segment.size, _index_size(log, segment.base_offset))
            for segment in segment_facts(log)
        ],
        first_dirty=dirt.first_dirty,
        clean_end=dirt.clean_end,
        now=now,
        segment_size_max=config.segment_bytes,
        index_size_max=config.segment_index_bytes,
        index_interval_size=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        producers={
            producer_id: LastOfProducer(
                entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch
            )
            for producer_id, entry in log.producers.entries.items()
        },
        buffer_size=settings.buffer_size,
        load_factor=settings.load_factor,
        bytes_per_second=settings.bytes_per_second,
    )


def _index_size(log: Log, base_offset: int) -> int:
    sizes = [0]
    for kind in ("index", "timeindex"):
        with suppress(FileNotFoundError):
            path = f"{log.path}/{base_offset:020d}.{kind}"
            sizes.append(log.directory.files.stat(path).size)
    return max(sizes)


def _first_timestamp(log: Log, base_offset: int) -> int:
    try:
        file = OpenFile(log.directory.files, f"{log.path}/{base_offset:020d}.log", O_RDONLY)
        return read_header(read_exactly(file, HEADER_SIZE, Position(0))).max_timestamp
    except (BadBatch, FileNotFoundError):
        return -1  # an empty segment, or just deleted
