"""The runtime behind coordinators: shards loaded from an internal topic, asked, and written for.

One ``Coordinator`` stands before one internal topic. Each partition of it that this broker leads
has a shard (``core.outcome.Shard``), a pure machine; here is everything it does not do itself:

    find       the partition of a group or transactional id decides who coordinates it
    load       the partition's log is replayed in the background, a piece at a time
    ask        decide -> append one batch -> replay -> reply once the high watermark has passed it
    ask apart  the same with deciding and replaying in a thread, if it is called large; who asks
               this shard meanwhile waits, in order, and all others are served
    wake       one timer on the earliest deadline of all shards
    let go     leadership lost, or unclear what was written: the shard is dropped with all it knew

What a client is told when its coordinator cannot be asked:

    NOT_COORDINATOR                 the partition is led elsewhere, does not exist, cannot be read
    COORDINATOR_LOAD_IN_PROGRESS    its log is being replayed
    COORDINATOR_NOT_AVAILABLE       what was decided could not be written; also when stopping

On one node a batch is committed as soon as it is written, so most requests are answered without
a future and without a task.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from headrace.broker.clock import SteadyClock
from headrace.core.outcome import (
    NewRecord,
    Outcome,
    PackedRecords,
    ProducerStamp,
    Reply,
    Shard,
    Ticket,
)
from headrace.core.partition import Leadership
from headrace.core.topics import java_hash
from headrace.model.errors import Corrupt, ErrorCode, PeerBroken, Rejected
from headrace.model.ids import LeaderEpoch, Millis, Offset
from headrace.records.batch import (
    CONTROL,
    NO_CODEC,
    RECORDS_AT,
    TRANSACTIONAL,
    BadBatch,
    headers,
)
from headrace.records.plain import batch_around, keys_and_values, plain_batch
from headrace.records.record import COMMIT, build_marker, iter_records, marker_type, open_records
from headrace.storage.log import COORDINATOR
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.replication.replica_manager import Replica

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
Decide = Callable[[S, Ticket, Millis], Outcome]
Tell = Callable[[S, Millis], Outcome]
IsLarge = Callable[[S], bool]
Chunk = Sequence[NewRecord] | PackedRecords

# Replaying so much keeps the loop for a few milliseconds; then others have their turn.
_LOAD_CHUNK_SIZE = 256 << 10
# A wave of deadlines gives way to others after this.
_TICK_BUDGET_S = 0.005
_RECORD_OVERHEAD_MAX = 32  # lengths and deltas around one key and value
_PASSED_ON = frozenset(
    {
        # What the client has to answer for, or can change.
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
_MARKER_WRITTEN = Message()


class _Uncommitted(NamedTuple):
    """Replies and effects that wait until the high watermark reaches ``offset_end``.

    Replies wait until ``deadline``; effects for as long as it takes.
    """

    offset_end: Offset
    replies: tuple[Reply, ...]
    effects: tuple[object, ...]
    deadline: float


class _Led(Generic[S]):
    """One partition as this broker leads it, in one reign."""

    __slots__ = (
        "appended_end",
        "is_loaded",
        "is_taken",
        "leadership",
        "partition",
        "problem",
        "queue",
        "replica",
        "shard",
        "to_be_told",
        "uncommitted",
        "waiting",
    )

    def __init__(
        self, partition: int, replica: "Replica", leadership: Leadership, shard: S
    ) -> None:
        self.partition = partition
        self.replica = replica
        self.leadership = leadership  # not another's: a new reign needs a new shard
        self.shard = shard
        self.is_loaded = False
        self.is_taken = False  # by a thread, or by those that came meanwhile: nobody else may ask
        self.queue: deque[Callable[[], Awaitable[None] | None]] = deque()  # for when it is free
        self.problem: str | None = None  # why it could not be loaded
        self.appended_end = Offset(0)  # exclusive, of what the shard has replayed
        self.to_be_told: list[Tell[S]] = []  # came while it was loading
        self.uncommitted: deque[_Uncommitted] = deque()
        self.waiting: dict[Ticket, asyncio.Future[Any]] = {}


class Coordinator(Generic[S]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        broker: "Broker",
        topic: str,
        partition_count_setting: str,
        make_shard: Callable[[int], S],
        run_effect: Callable[[int, object], None] | None = None,
        codec_setting: str | None = None,
    ) -> None:
        """``make_shard`` gets the partition; so does ``run_effect``, with one of ``effects``."""
        self._broker = broker
        self.topic = topic
        self._partition_count_setting = partition_count_setting
        self._make_shard = make_shard
        self._run_effect = run_effect
        self._codec_setting = codec_setting
        self._clock = SteadyClock(broker.clock)
        self._led: dict[int, _Led[S]] = {}
        self._last_ticket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._is_closed = False

    # -- where ----------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """As the topic has it, else as it will be made."""
        state = self._broker.metadata.topics.get(self.topic)
        if state is not None:
            return len(state.partitions)
        return self._broker.config.int(self._partition_count_setting)

    def partition_of(self, key: str) -> int:
        """The partition whose leader coordinates this group or transactional id."""
        return java_hash(key) % self.partition_count

    def loaded_partitions(self) -> list[int]:
        """Where ``ask_partition`` will find a shard."""
        return [led.partition for led in list(self._led.values()) if self._is_current(led)]

    def is_loading(self) -> bool:
        return any(not led.is_loaded and led.problem is None for led in self._led.values())

    def now(self) -> Millis:
        """The clock of the shards."""
        return self._clock.now()

    # -- asking ---------------------------------------------------------------------------

    def ask(self, key: str, decide: Decide[S], is_large: IsLarge[S] | None = None) -> Any:
        """The response, or a future of it. Raises Rejected, or the future does.

        ``is_large`` says whether deciding would hold up everybody else.
        """
        return self.ask_partition(self.partition_of(key), decide, is_large)

    def ask_partition(
        self, partition: int, decide: Decide[S], is_large: IsLarge[S] | None = None
    ) -> Any:
        led = self._find(partition)
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket)
        if led.is_taken or (is_large is not None and is_large(led.shard)):
            future = led.waiting[ticket] = self._broker.loop.create_future()
            self._enqueue(led, lambda: self._ask_queued(led, decide, ticket, is_large))
            return future
        now = self._clock.now()
        return self._carry_out(led, decide(led.shard, ticket, now), ticket, now)

    def tell(self, partition: int, decide: Tell[S]) -> None:
        """An event that nobody waits for. Raises Rejected if the shard cannot be asked."""
        self._tell_or_enqueue(self._find(partition), decide)

    def tell_all(self, decide: Tell[S]) -> None:
        """The same for every shard; those being loaded hear of it then."""
        for led in list(self._led.values()):
            if self._is_current(led):
                self._tell_or_enqueue(led, decide)
            elif not led.is_loaded:
                led.to_be_told.append(decide)

    def _tell_or_enqueue(self, led: _Led[S], decide: Tell[S]) -> None:
        if led.is_taken:
            self._enqueue(led, lambda: self._tell(led, decide))
        else:
            self._tell(led, decide)

    def _tell(self, led: _Led[S], decide: Tell[S]) -> None:
        now = self._clock.now()
        self._run(led, decide(led.shard, now), now)

    # -- asking apart ---------------------------------------------------------------------

    def _enqueue(self, led: _Led[S], work: Callable[[], Awaitable[None] | None]) -> None:
        led.queue.append(work)
        if not led.is_taken:
            led.is_taken = True
            self._broker.spawn(self._work_off(led))

    async def _work_off(self, led: _Led[S]) -> None:
        """Do what waits for a shard, one after the other, until nothing does."""
        try:
            while led.queue and self._is_current(led):
                pending = led.queue.popleft()()
                if pending is not None:
                    await pending
        except Exception as error:
            # A bug, and the shard may be half changed.
            self._broker.fail(error)
            raise
        led.is_taken = False
        self._broker.dispatch.serve_committed()
        self._arm_for(led, self._clock.now())  # its deadlines were not looked at meanwhile

    async def _ask_queued(
        self, led: _Led[S], decide: Decide[S], ticket: Ticket, is_large: IsLarge[S] | None
    ) -> None:
        now = self._clock.now()
        is_apart = is_large is not None and is_large(led.shard)
        try:
            if is_apart:
                outcome = await asyncio.to_thread(decide, led.shard, ticket, now)
            else:
                outcome = decide(led.shard, ticket, now)
        except Exception as error:  # noqa: BLE001 - a bug, before anything was appended
            future = led.waiting.pop(ticket, None)
            if future is not None and not future.done():
                future.set_exception(error)
            return
        if not self._is_current(led):
            return  # dropped meanwhile; whoever waits was told
        if not is_apart or not outcome.records:
            self._run(led, outcome, now)
            return
        try:
            for chunk in self._chunks(led, outcome):
                base_offset = self._append(led, self._batch(chunk, outcome.producer, now), now)
                await asyncio.to_thread(self._replay, led, chunk, base_offset, outcome.producer)
                if not self._is_current(led):
                    return  # what is left of it would follow on what the next shard has loaded
        except Rejected as refusal:
            self._refuse(led, outcome.replies, refusal)
        else:
            self._run(led, outcome._replace(records=()), now)

    def _find(self, partition: int) -> _Led[S]:
        led = self._led.get(partition)
        if led is None or led.leadership is not led.replica.leadership:
            found = self._take_up(partition)
            if found is None:
                raise Rejected(
                    ErrorCode.NOT_COORDINATOR,
                    f"this broker does not lead {self.topic}-{partition}",
                )
            led = found
        if not led.is_loaded:
            if led.problem is not None:
                raise Rejected(ErrorCode.NOT_COORDINATOR, led.problem)
            raise Rejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is being loaded"
            )
        return led

    def _is_current(self, led: _Led[S]) -> bool:
        return led.is_loaded and led.leadership is led.replica.leadership

    def _carry_out(self, led: _Led[S], outcome: Outcome, own: Ticket, now: Millis) -> Any:
        """Append, replay, and let the replies go; returns what ``own`` is to be answered."""
        replies, effects = outcome.replies, outcome.effects
        if outcome.records:
            try:
                self._write(led, outcome, now)
            except Rejected as refusal:
                answered = self._refuse(led, replies, refusal, own)
                if answered or not led.is_loaded:
                    self._arm_for(led, now)
                    raise
                effects = replies = ()
        answer: Any = None
        if not led.uncommitted and led.appended_end <= led.leadership.high_watermark:
            waiting = led.waiting
            for ticket, response in replies:
                if ticket == own:
                    answer = response
                elif (future := waiting.pop(ticket, None)) is not None and not future.done():
                    future.set_result(response)
            if effects:
                self._run_effects(led, effects)
        elif replies or effects:
            self._hold_back(led, replies, effects, now)
        self._arm_for(led, now)
        if answer is None:
            answer = led.waiting[own] = self._broker.loop.create_future()
        return answer

    def _run(self, led: _Led[S], outcome: Outcome, now: Millis) -> None:
        """Carry out what nobody in particular waits for."""
        replies, effects = outcome.replies, outcome.effects
        if outcome.records:
            try:
                self._write(led, outcome, now)
            except Rejected as refusal:
                self._refuse(led, replies, refusal)
                replies, effects = (), ()
        if replies or effects:
            self._hold_back(led, replies, effects, now)
            self._let_go_committed(led)
        self._arm_for(led, now)

    def _refuse(
        self, led: _Led[S], replies: Iterable[Reply], refusal: Rejected, own: Ticket | None = None
    ) -> bool:
        """Tell those who were to be answered; whether ``own`` is one of them."""
        found = False
        for ticket, _ in replies:
            if ticket == own:
                found = True
            elif (future := led.waiting.pop(ticket, None)) is not None and not future.done():
                future.set_exception(refusal)
        return found

    def _run_effects(self, led: _Led[S], effects: Iterable[object]) -> None:
        assert self._run_effect is not None
        for effect in effects:
            self._run_effect(led.partition, effect)

    # -- writing --------------------------------------------------------------------------

    def _write(self, led: _Led[S], outcome: Outcome, now: Millis) -> None:
        producer = outcome.producer
        for chunk in self._chunks(led, outcome):
            base_offset = self._append(led, self._batch(chunk, producer, now), now)
            try:
                self._replay(led, chunk, base_offset, producer)
            except Exception as error:
                # The log has what the shard does not: nothing it says can be trusted.
                self._broker.fail(error)
                raise

    def _batch(self, chunk: Chunk, producer: ProducerStamp | None, now: Millis) -> bytearray:
        codec = NO_CODEC
        if self._codec_setting is not None:
            codec = self._broker.config.int(self._codec_setting)
        if isinstance(chunk, PackedRecords):
            return batch_around(chunk.section, chunk.count, None, now, codec)
        return plain_batch(chunk, producer, now, codec)

    @staticmethod
    def _replay(
        led: _Led[S], records: Chunk, base_offset: Offset, producer: ProducerStamp | None
    ) -> None:
        if isinstance(records, PackedRecords):
            records.replay(led.shard, base_offset)
            led.appended_end = Offset(base_offset + records.count)
            return
        producer_id, producer_epoch = producer or (-1, -1)
        replay = led.shard.replay
        offset: int = base_offset
        for key, value in records:
            replay(key, value, offset, producer_id, producer_epoch)
            offset += 1
        led.appended_end = Offset(offset)

    def _chunks(self, led: _Led[S], outcome: Outcome) -> Iterable[Chunk]:
        """What goes into one batch each; every one is to be replayed before the next is written."""
        records = outcome.records
        if isinstance(records, PackedRecords) or not outcome.splittable:
            return (records,)
        return self._split(led, records)

    def _split(self, led: _Led[S], records: Sequence[NewRecord]) -> Iterator[Chunk]:
        config = led.replica.log.config
        size_max = min(config.max_message_bytes, config.segment_bytes) - RECORDS_AT
        start, size = 0, 0
        for index, (key, value) in enumerate(records):
            record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD_MAX
            if size + record_size > size_max and index > start:
                yield records[start:index]
                start, size = index, 0
            size += record_size
        yield records[start:]

    def _append(
        self, led: _Led[S], batch: bytearray, now: Millis, transaction_version: int = 0
    ) -> Offset:
        """Write one batch; Rejected if nothing was, or if it is unclear what."""
        replica, leadership = led.replica, led.leadership
        if not leadership.enough_replicas:
            raise Rejected(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{replica.topic_partition} has fewer in-sync replicas than it needs",
            )
        try:
            appended = replica.log.append_as_leader(
                memoryview(batch),
                LeaderEpoch(leadership.leader_epoch),
                now,
                origin=COORDINATOR,
                transaction_version=transaction_version,
            )
            if replica.write_staged():
                self._broker.flush(replica)
        except Rejected as refusal:
            if refusal.code in _PASSED_ON:
                raise
            _log.error(
                "%s could not be written (%s); its coordinator is loaded anew, and clients are "
                "told to find it again. Look at the disk under %s",
                replica.topic_partition,
                refusal.message,
                replica.log.path,
            )
            self._drop(led, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            raise Rejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message or "") from None
        return appended.base_offset

    def write_marker(
        self,
        partition: int,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int = 0,
    ) -> "asyncio.Future[None] | None":
        """End a transaction in this partition; None once that is committed, else a future."""
        led = self._find(partition)
        now = self._clock.now()
        marker = build_marker(
            commit=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now,
        )

        def write() -> None:
            offset = self._append(led, bytearray(marker), now, transaction_version)
            led.shard.replay_marker(producer_id, producer_epoch, committed, offset)
            led.appended_end = Offset(offset + 1)

        if led.is_taken:
            future, reply = self._awaited(led)
            self._enqueue(led, lambda: self._write_queued(led, write, reply, now))
            return future
        write()
        if led.appended_end <= led.leadership.high_watermark:
            return None
        future, reply = self._awaited(led)
        self._hold_back(led, (reply,), (), now)
        return future

    def _awaited(self, led: _Led[S]) -> tuple["asyncio.Future[None]", Reply]:
        """A future, and the reply that will settle it."""
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket)
        future: asyncio.Future[None] = self._broker.loop.create_future()
        led.waiting[ticket] = future
        return future, Reply(ticket, _MARKER_WRITTEN)

    def _write_queued(
        self, led: _Led[S], write: Callable[[], None], reply: Reply, now: Millis
    ) -> None:
        try:
            write()
        except Rejected as refusal:
            self._refuse(led, (reply,), refusal)
        else:
            self._run(led, Outcome(replies=(reply,)), now)

    def _hold_back(
        self,
        led: _Led[S],
        replies: tuple[Reply, ...],
        effects: tuple[object, ...],
        now: Millis,
    ) -> None:
        deadline = now + self._broker.config.int("offsets.commit.timeout.ms")
        led.uncommitted.append(_Uncommitted(led.appended_end, replies, effects, deadline))
        if deadline < self._timer_at:
            self._arm(deadline, now)

    def committed(self, replica: "Replica") -> None:
        """The high watermark of a partition has moved."""
        led = self._led.get(replica.topic_partition.partition)
        if led is not None and led.replica is replica and led.uncommitted:
            self._let_go_committed(led)

    def _let_go_committed(self, led: _Led[S]) -> None:
        queue = led.uncommitted
        while queue and queue[0].offset_end <= led.leadership.high_watermark:
            _, replies, effects, _ = queue.popleft()
            for ticket, response in replies:
                future = led.waiting.pop(ticket, None)
                if future is not None and not future.done():
                    future.set_result(response)
            if effects:
                self._run_effects(led, effects)

    def _give_up_overdue(self, led: _Led[S], now: Millis) -> float:
        """Tell those whose commit takes too long; when to look again.

        What was appended stays and may still be committed: the client cannot know, and asks again.
        """
        overdue = Rejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the in-sync replicas did not follow in time"
        )
        for place, held in enumerate(led.uncommitted):
            if held.deadline > now:
                return held.deadline
            if held.replies:
                self._refuse(led, held.replies, overdue)
                led.uncommitted[place] = held._replace(replies=())
        return float("inf")

    # -- loading and letting go -----------------------------------------------------------

    def refresh(self) -> None:
        """Have shards for what is led here now, and for nothing else."""
        if self._is_closed:
            return
        for led in list(self._led.values()):
            if led.leadership is not led.replica.leadership:
                self._drop(led, ErrorCode.NOT_COORDINATOR)
        for replica in self._broker.replicas.of_topic(self.topic):
            if replica.topic_partition.partition not in self._led:
                self._take_up(replica.topic_partition.partition)

    def _take_up(self, partition: int) -> _Led[S] | None:
        """Begin to coordinate a partition; None if it is not led here."""
        old = self._led.get(partition)
        if old is not None:
            self._drop(old, ErrorCode.NOT_COORDINATOR)
        replica = self._broker.replicas.get(self.topic, partition)
        if replica is None or self._is_closed:
            return None
        leadership = replica.leadership
        if leadership is None or replica.log.offline is not None:
            return None
        led = _Led(partition, replica, leadership, self._make_shard(partition))
        self._led[partition] = led
        if replica.log.log_start == replica.log.log_end:
            self._loaded(led)
        else:
            self._broker.spawn(self._load(led))
        return led

    def _drop(self, led: _Led[S], code: ErrorCode) -> None:
        """Forget a shard. Whoever waits on it has to find the coordinator again."""
        if self._led.get(led.partition) is led:
            del self._led[led.partition]
        led.is_loaded = False
        led.uncommitted.clear()
        led.queue.clear()
        waiting, led.waiting = led.waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    Rejected(code, f"{self.topic}-{led.partition} is no longer coordinated here")
                )

    async def _load(self, led: _Led[S]) -> None:
        log = led.replica.log
        started_at = self._broker.loop.time()
        next_offset, record_count = log.log_start, 0
        try:
            while next_offset < log.log_end and self._led.get(led.partition) is led:
                part = log.read(next_offset, _LOAD_CHUNK_SIZE, log.log_end)
                if part is None:
                    break  # compaction left nothing behind this offset
                data = await asyncio.to_thread(os.pread, part.file.fd, part.size, part.position)
                if len(data) < part.size:  # without a whole batch this would not get any further
                    raise Corrupt(f"{part.file.path} ends at byte {part.position + len(data)}")
                end, count = self._replay_chunk(led.shard, data)
                record_count += count
                await asyncio.sleep(0)
                # Retention may have taken away what comes next.
                next_offset = max(next_offset, end, log.log_start)
        except (BadBatch, Corrupt, IndexError, PeerBroken, Rejected, OSError, ValueError) as error:
            if log.closed:
                return  # the topic was deleted
            led.problem = f"{led.replica.topic_partition} cannot be read: {error}"
            _log.error(
                "%s. Groups or transactions of this partition are not served; "
                "look at the files in %s",
                led.problem,
                log.path,
            )
            return
        if self._led.get(led.partition) is not led or led.leadership is not led.replica.leadership:
            return
        _log.info(
            "loaded %s: %d records in %.0f ms",
            led.replica.topic_partition,
            record_count,
            (self._broker.loop.time() - started_at) * 1000,
        )
        self._loaded(led)
        self._broker.dispatch.serve_committed()

    def _loaded(self, led: _Led[S]) -> None:
        led.is_loaded = True
        led.appended_end = led.replica.log.log_end
        now = self._clock.now()
        self._run(led, led.shard.loaded(now), now)
        for decide in led.to_be_told:
            self._run(led, decide(led.shard, now), now)
        led.to_be_told.clear()

    @staticmethod
    def _replay_chunk(shard: S, data: bytes) -> tuple[Offset, int]:
        """Replay whole batches; the offset after the last of them, and how many records."""
        end, count = 0, 0
        view = memoryview(data)
        for position, header in headers(data):
            batch = view[position : position + header.size]
            is_transactional = header.attributes & TRANSACTIONAL
            producer_id = header.producer_id if is_transactional else -1
            if header.attributes & CONTROL:
                for record in iter_records(batch):
                    committed = marker_type(record.key) == COMMIT
                    shard.replay_marker(
                        producer_id, header.producer_epoch, committed, record.offset
                    )
            else:
                section = open_records(batch, header)
                for delta, key, value in keys_and_values(section, header.record_count):
                    if key is not None:
                        offset = header.base_offset + delta
                        shard.replay(key, value, offset, producer_id, header.producer_epoch)
            end = header.next_offset
            count += header.record_count
        return Offset(end), count

    def close(self) -> None:
        """Nobody is coordinated any more; all who wait are told."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for led in list(self._led.values()):
            self._drop(led, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- time -----------------------------------------------------------------------------

    def _arm_for(self, led: _Led[S], now: Millis) -> None:
        deadline = led.shard.next_deadline()
        if deadline is not None and deadline < self._timer_at and led.is_loaded:
            self._arm(deadline, now)

    def _arm(self, deadline: float, now: Millis) -> None:
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        # Not rounded up: who waits for a session's time exactly finds it over, and a timer that
        # fires a hair early finds nothing to do and is set again.
        delay_s = max(0.0, (deadline - now) / 1000)
        self._timer = self._broker.loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        loop = self._broker.loop
        give_way_at = loop.time() + _TICK_BUDGET_S
        next_at = float("inf")
        now = self._clock.now()
        try:
            for led in list(self._led.values()):
                if not self._is_current(led):
                    continue
                if led.uncommitted:
                    next_at = min(next_at, self._give_up_overdue(led, now))
                if led.is_taken:
                    continue  # the shard itself is looked at when it is free
                while (deadline := led.shard.next_deadline()) is not None:
                    if deadline > now or loop.time() > give_way_at:
                        next_at = min(next_at, deadline)
                        break
                    self._run(led, led.shard.tick(now), now)
                    if not self._is_current(led):
                        break
            self._broker.dispatch.serve_committed()
        except Exception as error:  # noqa: BLE001 - a bug while deciding: the broker stops
            self._broker.fail(error)
            return
        if next_at < self._timer_at:
            self._arm(next_at, now)
