"""Write a shard's decisions: append their records as batches, and replay them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.broker.coordinators.loaded_shard import LoadedShard, S
from headrace.core.outcome import NewRecord, Outcome, PackedRecords, ProducerStamp
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset
from headrace.records.batch import RECORDS_AT
from headrace.records.plain import batch_around, plain_batch
from headrace.records.record import build_marker

if TYPE_CHECKING:
    from headrace.broker.replication.append import Appender

_log = logging.getLogger("headrace.coordinator")

Chunk = Sequence[NewRecord] | PackedRecords

_RECORD_OVERHEAD_MAX = 32  # lengths and deltas around one key and value
# Errors that the client caused or can act on. All others are the coordinator's own.
_PASSED_ON = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
# Errors of the partition's leader that do not affect the shard -> the coordinator's error.
_NOTHING_WRITTEN = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}


class WriteFailed(Rejected):
    """The content of the log is unknown: the shard must be loaded again."""


class ShardWriter:
    def __init__(
        self,
        appender: "Appender",
        codec: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._appender = appender
        self._codec = codec
        self._fail = fail

    def write(self, loaded: LoadedShard[S], outcome: Outcome, now: Millis) -> None:
        """Append the records of ``outcome`` and replay them. Raises what ``append`` raises."""
        for chunk in self.chunks(loaded, outcome):
            base_offset = self.append_chunk(loaded, chunk, outcome.producer, now)
            try:
                self.replay(loaded, chunk, base_offset, outcome.producer)
            except Exception as error:
                # The log has records that the shard does not: the shard can no longer be trusted.
                self._fail(error)
                raise

    def write_marker(
        self,
        loaded: LoadedShard[S],
        now: Millis,
        *,
        producer: ProducerStamp,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int,
    ) -> None:
        """Append the marker that ends a transaction, and replay it. Raises as ``append`` does."""
        producer_id, producer_epoch = producer
        marker = build_marker(
            commit=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now,
        )
        offset = self.append(loaded, bytearray(marker), now, transaction_version)
        try:
            loaded.shard.replay_marker(producer_id, producer_epoch, committed, offset)
        except Exception as error:
            self._fail(error)  # as in ``write``
            raise
        loaded.appended_end = Offset(offset + 1)

    def append_chunk(
        self, loaded: LoadedShard[S], chunk: Chunk, producer: ProducerStamp | None, now: Millis
    ) -> Offset:
        codec = self._codec()
        if isinstance(chunk, PackedRecords):
            batch = batch_around(chunk.section, chunk.count, None, now, codec)
        else:
            batch = plain_batch(chunk, producer, now, codec)
        return self.append(loaded, batch, now)

    def append(
        self, loaded: LoadedShard[S], batch: bytearray, now: Millis, transaction_version: int = 0
    ) -> Offset:
        """Append one batch; returns its base offset.

        Raises Rejected if nothing was appended, with an error for the coordinator's client, and
        WriteFailed if the content of the log is unknown.
        """
        replica = loaded.replica
        try:
            return self._appender.append(
                replica, batch, now, transaction_version=transaction_version
            ).base_offset
        except Rejected as refusal:
            if refusal.code in _PASSED_ON:
                raise
            if refusal.code in _NOTHING_WRITTEN:
                code = _NOTHING_WRITTEN[refusal.code]
                raise Rejected(code, refusal.message or "") from None
            _log.error(
                "Could not write to %s (%s). Its coordinator is loaded again, and clients have to "
                "find it again. Check the disk of %s",
                replica.topic_partition,
                refusal.message,
                replica.log.path,
            )
            raise WriteFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message or "") from None

    @staticmethod
    def replay(
        loaded: LoadedShard[S], records: Chunk, base_offset: Offset, producer: ProducerStamp | None
    ) -> None:
        if isinstance(records, PackedRecords):
            records.replay(loaded.shard, base_offset)
            loaded.appended_end = Offset(base_offset + records.count)
            return
        producer_id, producer_epoch = producer or (-1, -1)
        replay = loaded.shard.replay
        offset: int = base_offset
        for key, value in records:
            replay(key, value, offset, producer_id, producer_epoch)
            offset += 1
        loaded.appended_end = Offset(offset)

    def chunks(self, loaded: LoadedShard[S], outcome: Outcome) -> Iterable[Chunk]:
        """The records of each batch; each batch is replayed before the next is written."""
        records = outcome.records
        if isinstance(records, PackedRecords) or not outcome.splittable:
            return (records,)
        return self._split(loaded, records)

    @staticmethod
    def _split(loaded: LoadedShard[S], records: Sequence[NewRecord]) -> Iterator[Chunk]:
        config = loaded.replica.log.config
        size_max = min(config.max_message_bytes, config.segment_bytes) - RECORDS_AT
        start, size = 0, 0
        for index, (key, value) in enumerate(records):
            record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD_MAX
            if size + record_size > size_max and index > start:
                yield records[start:index]
                start, size = index, 0
            size += record_size
        yield records[start:]
