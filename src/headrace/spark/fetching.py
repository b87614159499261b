"""Reads one range of one partition: every record exactly once, whatever fails meanwhile.

The reader owns a position that only moves forward, past batches that it has returned. It first
finds where the next fetch begins, sends that fetch, and only then opens the records of the last
response. So broker and reader work at the same time.

If a leader moves, a broker restarts or a connection breaks, the reader fetches again from the
same position. It skips gaps that Kafka makes on purpose (compaction, aborted transactions,
transaction markers). Records that retention or the deletion of a topic removed are data loss,
and are reported.
"""

import logging
import time
from collections.abc import Iterator

from headrace.arrow.columns import Records, open_sections
from headrace.arrow.selection import Section, select_batches
from headrace.client.errors import Disconnected, Refused, error_code
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.batch import BadBatch
from headrace.spark.cluster import EARLIEST, LATEST, NO_TOPIC_ID, Cluster
from headrace.spark.failures import DataLost, PipelineError, refused
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings
from headrace.wire import messages as m

log = logging.getLogger("headrace.spark")

# Small, so that a narrow range (a filter, a split) does not fetch megabytes past its end. Its
# response tells how large the next fetch should be.
_FIRST_FETCH_SIZE = 128 << 10
_BYTES_PER_OFFSET_GUESS = 1_000
_FETCH_SIZE_MIN = 16 << 10
_BY_NAME_VERSION_MAX = 12
_EMPTY_ANSWERS_AT_A_GAP = 2
# A broker that has just started, or has just become leader, may briefly report older offsets than
# its predecessor. So a loss counts only if it is still seen after this time.
LOSS_CONFIRMED_AFTER_S = 2.0

LOST_ADVICE = (
    "Retention may have deleted records, or the topic may have been deleted. Set "
    "failOnDataLoss=false to continue with the records that exist"
)


def report_loss(fail_on_data_loss: bool, what: str) -> None:
    if fail_on_data_loss:
        raise DataLost(f"{what}. {LOST_ADVICE}")
    log.warning("%s; continuing, because failOnDataLoss is false", what)


class RangeReader:
    """Reads one range: iterate for ``Records``, or call ``batches`` for whole batches."""

    def __init__(
        self, cluster: Cluster, range_: Range, topic_id: bytes, settings: FetchSettings
    ) -> None:
        self._cluster = cluster
        self._place: TopicPartition = range_.place
        self._offset_end = range_.offset_end
        self._position = range_.first_offset
        self._topic_id = topic_id
        self._settings = settings
        self._leader: int | None = None
        self._bytes_per_offset = 0.0
        self._empty_answers = 0
        self._visible_end = 0
        self._loss_seen_at: float | None = None
        self.bytes_fetched = 0
        self.offsets_fetched = 0  # by whole batches, so also outside the range

    def __iter__(self) -> Iterator[Records]:
        for first_offset, sections in self.batches():
            # A fetch returns whole batches, which may hold records before the requested offset.
            for piece in open_sections(sections):
                records = piece.within(first_offset, self._offset_end)
                if records.size:
                    yield records

    def batches(self) -> Iterator[tuple[int, list[Section]]]:
        """All batches with a record in the range, in order and still compressed, in groups.

        Each group comes with its requested offset; records before it are not part of the range.
        """
        try:
            yield from self._read()
        finally:
            # A reader that is left early (a limit, a failed task) has a request in flight, whose
            # response must not reach the next user of the connection.
            if self._leader is not None and self._cluster.has_requests_in_flight(self._leader):
                self._cluster.drop(self._leader)

    def _read(self) -> Iterator[tuple[int, list[Section]]]:
        pause_ms = self._cluster.settings.retry_backoff_ms
        give_up_at = self._deadline()
        bad_batches = 0
        while self._position < self._offset_end:
            first_offset = self._position
            try:
                if self._leader is None:
                    self._begin()
                sections = self._next_sections()
            except (Disconnected, Refused, BadBatch) as failed:
                self._abandon()
                if isinstance(failed, BadBatch):
                    bad_batches += 1
                if bad_batches > 2 or (isinstance(failed, Refused) and not failed.retriable):
                    raise PipelineError(
                        f"cannot read {self._place} at offset {first_offset}: {failed}"
                    ) from failed
                if time.monotonic() > give_up_at:
                    raise PipelineError(
                        f"could not read {self._place} at offset {first_offset} within "
                        f"{self._settings.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs); "
                        f"the last problem was: {failed}"
                    ) from failed
                self._position = first_offset
                self._look_for_loss(failed)
                time.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, self._cluster.settings.retry_backoff_ms_max)
                continue
            if self._position > first_offset:
                self._loss_seen_at = None
                give_up_at = self._deadline()
                pause_ms = self._cluster.settings.retry_backoff_ms
            elif time.monotonic() > give_up_at:
                self._give_up()
            if sections:
                yield first_offset, sections

    def _give_up(self) -> None:
        """The brokers respond, but return no records. Offsets that they do not have are lost."""
        what = (
            f"{self._place} returned no records at offset {self._position} within "
            f"{self._settings.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs), although the "
            f"query reads up to offset {self._offset_end}"
        )
        if self._position < self._visible_end:
            raise PipelineError(what)
        report_loss(
            self._settings.fail_on_data_loss, f"{what}; the log ends at {self._visible_end}"
        )
        self._position = self._offset_end

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.poll_timeout_ms / 1000

    def _begin(self) -> None:
        metadata = self._cluster.topic(self._place.topic)
        if metadata.topic_id not in (self._topic_id, NO_TOPIC_ID) and self._topic_id != NO_TOPIC_ID:
            # Either the metadata or the plan is outdated. A worker keeps metadata from earlier
            # tasks, so it refreshes the metadata before it reports a loss.
            raise Refused(ErrorCode.INCONSISTENT_TOPIC_ID, f"fetching {self._place}")
        self._leader = self._cluster.leader(*self._place)
        self._send()

    def _abandon(self) -> None:
        if self._leader is not None:
            self._cluster.drop(self._leader)
            self._leader = None
        self._cluster.forget()

    def _send(self) -> None:
        assert self._leader is not None
        settings = self._settings
        request = m.FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.wait_ms_max,
            min_bytes=settings.size_min,
            max_bytes=settings.size_max,
            isolation_level=int(settings.read_committed),
            session_epoch=-1,
            topics=[
                m.FetchRequest.FetchTopic(
                    topic=self._place.topic,
                    topic_id=self._topic_id,
                    partitions=[
                        m.FetchRequest.FetchPartition(
                            partition=self._place.partition,
                            current_leader_epoch=-1,
                            fetch_offset=self._position,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=self._size_wanted(),
                        )
                    ],
                )
            ],
            rack_id=self._cluster.settings.rack,
        )
        by_name = self._topic_id == NO_TOPIC_ID
        self._cluster.connection(self._leader).send(
            request, version_max=_BY_NAME_VERSION_MAX if by_name else None
        )

    def _size_wanted(self) -> int:
        """The estimated bytes of the rest of the range, and a little more."""
        size_max = self._settings.size_max
        offsets_left = self._offset_end - self._position
        if not self._bytes_per_offset:
            guess = min(offsets_left * _BYTES_PER_OFFSET_GUESS, _FIRST_FETCH_SIZE)
        else:
            guess = int(offsets_left * self._bytes_per_offset * 1.1)
        return min(size_max, max(guess, _FETCH_SIZE_MIN))

    def _next_sections(self) -> list[Section]:
        assert self._leader is not None
        connection = self._cluster.connection(self._leader)
        wait_s = connection.timeout_s + self._settings.wait_ms_max / 1000
        answer = connection.receive(m.FetchResponse, timeout_s=wait_s)
        if answer.error_code:
            raise refused(error_code(answer.error_code), f"fetching {self._place}")
        if not answer.responses:
            # Brokers throttle a client that exceeds its quota with an empty response.
            self._send()
            return []
        partition = answer.responses[0].partitions[0]
        if partition.error_code:
            return self._refused(error_code(partition.error_code))
        if partition.preferred_read_replica >= 0 and not partition.records:
            # The broker names a replica in our rack that has all visible records.
            self._leader = partition.preferred_read_replica
            self._send()
            return []
        fetched = memoryview(partition.records or b"")
        aborted = None
        if self._settings.read_committed:
            aborted = [
                (entry.producer_id, entry.first_offset)
                for entry in partition.aborted_transactions or ()
            ]
        first_offset = self._position
        selected = select_batches(
            fetched, first_offset, self._offset_end, aborted, check_crcs=self._settings.check_crcs
        )
        self.bytes_fetched += len(fetched)
        self.offsets_fetched += selected.offsets_read
        self._position = selected.next_offset
        if self._position == first_offset:
            self._no_records_returned(partition.high_watermark, partition.last_stable_offset)
        else:
            self._empty_answers = 0
            self._bytes_per_offset = selected.bytes_read / selected.offsets_read
        if self._position < self._offset_end:
            self._send()
        return selected.sections

    def _no_records_returned(self, high_watermark: int, last_stable_offset: int) -> None:
        """Handle an empty response below the end: records are not there yet, or not any more.

        The reader waits for records that are not there yet. But if the broker shows offsets up to
        the end of the range, and twice returns no batch at or after the position, compaction has
        removed them all. Except if they are in remote storage: brokers also return empty
        responses while remote storage is slow.
        """
        read_committed = self._settings.read_committed
        self._visible_end = last_stable_offset if read_committed else high_watermark
        if self._visible_end < self._offset_end:
            return
        self._empty_answers += 1
        if self._empty_answers < _EMPTY_ANSWERS_AT_A_GAP:
            return
        if not self._cluster.is_remote(self._place, self._position):
            self._position = self._offset_end

    def _refused(self, code: ErrorCode) -> list[Section]:
        if code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise refused(code, f"fetching {self._place}")
        self._leader = None
        bounds = {
            which: self._cluster.list_offsets(
                {self._place: which}, read_committed=self._settings.read_committed
            )[self._place]
            for which in (EARLIEST, LATEST)
        }
        earliest, latest = bounds[EARLIEST], bounds[LATEST]
        if earliest <= self._position <= latest:
            return []  # the offset is in range by now; the next round fetches again
        lost_end = self._offset_end
        if self._position < earliest:
            lost_end = min(earliest, self._offset_end)
        elif not self._loss_is_confirmed():
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"fetching {self._place}")
        report_loss(
            self._settings.fail_on_data_loss,
            f"{self._place} has only offsets {earliest} to {latest - 1}; the rows at offsets "
            f"{self._position} to {lost_end - 1} are gone",
        )
        self._position = lost_end
        return []

    def _look_for_loss(self, failed: Exception) -> None:
        """Report a loss if the topic was deleted, or was deleted and created again."""
        if not isinstance(failed, Refused) or failed.code not in (
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INCONSISTENT_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ):
            return
        try:
            metadata = self._cluster.topics([self._place.topic]).get(self._place.topic)
        except Disconnected:
            return
        if metadata is None or metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            how = "no longer exists"
        elif metadata.topic_id not in (self._topic_id, NO_TOPIC_ID):
            how = "was deleted and created again"
        else:
            return
        if self._loss_is_confirmed():
            self._lost_topic(how)

    def _loss_is_confirmed(self) -> bool:
        now = time.monotonic()
        if self._loss_seen_at is None:
            self._loss_seen_at = now
        return now - self._loss_seen_at >= LOSS_CONFIRMED_AFTER_S

    def _lost_topic(self, how: str) -> None:
        report_loss(
            self._settings.fail_on_data_loss,
            f"topic {self._place.topic!r} {how}; the rows of {self._place} at offsets "
            f"{self._position} to {self._offset_end - 1} are gone",
        )
        self._position = self._offset_end
