"""The coordinator runtime: asks shards of an internal topic, and writes their records.

One ``CoordinatorRuntime`` serves one internal topic. Each partition that this broker leads has a
shard (``core.outcome.Shard``), a pure state machine. ``shards`` loads and drops them; the runtime
carries out what they decide:

    find    the partition of a group or transactional id decides which broker coordinates it
    ask     decide -> append one batch -> replay -> reply once the high watermark has passed it;
            for a large request, decide and replay in a thread: meanwhile requests for this
            shard are queued, all others are served
    wake    tick the shards whose deadline has passed

On one node a batch is committed as soon as it is written, so most requests are answered without
a future and without a task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from headrace.broker.coordinators.deadlines import Deadlines
from headrace.broker.coordinators.host import Host
from headrace.broker.coordinators.loaded_shard import LoadedShard, S, Tell
from headrace.broker.coordinators.shards import Shards
from headrace.broker.coordinators.writing import ShardWriter, WriteFailed
from headrace.core.outcome import Outcome, ProducerStamp, Reply, Ticket
from headrace.core.parked import NEVER
from headrace.core.topics import java_hash
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.records.batch import NO_CODEC
from headrace.wire.schema import Message

Decide = Callable[[S, Ticket, Millis], Outcome]
IsLarge = Callable[[S], bool]

# After this time, a burst of deadlines pauses for requests.
_TICK_BUDGET_S = 0.005
_MARKER_WRITTEN = Message()


class CoordinatorRuntime(Generic[S]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        host: Host,
        topic: str,
        partition_count_setting: str,
        make_shard: Callable[[int], S],
        run_effect: Callable[[int, object], None] | None = None,
        codec_setting: str | None = None,
    ) -> None:
        """``make_shard`` gets the partition; so does ``run_effect``, with one of ``effects``."""
        self._host = host
        self.topic = topic
        self._partition_count_setting = partition_count_setting
        self._codec_setting = codec_setting
        self._writer = ShardWriter(host.appender, self._codec, host.fail)
        self._last_ticket = 0
        self._deadlines = Deadlines(host.waiting, self.wake)
        self.shards = Shards(host, topic, make_shard, run_effect, self._loaded)

    def _codec(self) -> int:
        if self._codec_setting is None:
            return NO_CODEC
        return self._host.dynamic_config.config.int(self._codec_setting)

    # -- where ----------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """The partition count of the topic, also if the topic is not created yet."""
        state = self._host.metadata.current.topics.get(self.topic)
        if state is not None:
            return len(state.partitions)
        return self._host.dynamic_config.config.int(self._partition_count_setting)

    def partition_of(self, key: str) -> int:
        """The partition whose leader coordinates this group or transactional id."""
        return java_hash(key) % self.partition_count

    def now(self) -> Millis:
        """The clock of the shards."""
        return self._host.clock.now()

    # -- asking ---------------------------------------------------------------------------

    def ask(self, key: str, decide: Decide[S], is_large: IsLarge[S] | None = None) -> Any:
        """The response, or a future of it. Raises Rejected, or the future does.

        ``is_large`` tells whether deciding would keep the loop for long.
        """
        state = self._host.metadata.current.topics.get(self.topic)
        if state is None:
            # The settings may differ from the real partition count, and the group or transactional
            # id would then get into the wrong partition.
            raise Rejected(
                ErrorCode.NOT_COORDINATOR, f"this broker does not know the topic {self.topic} yet"
            )
        return self.ask_partition(java_hash(key) % len(state.partitions), decide, is_large)

    def ask_partition(
        self, partition: int, decide: Decide[S], is_large: IsLarge[S] | None = None
    ) -> Any:
        loaded = self.shards.find(partition)
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket)
        if loaded.is_busy or (is_large is not None and is_large(loaded.shard)):
            future = loaded.future(ticket)
            self._enqueue(loaded, lambda: self._ask_queued(loaded, decide, ticket, is_large))
            return future
        now = self._host.clock.now()
        return self._carry_out(loaded, decide(loaded.shard, ticket, now), ticket, now)

    def tell(self, partition: int, decide: Tell[S]) -> None:
        """An event without a reply. Raises Rejected if the shard cannot be asked."""
        self._tell_or_enqueue(self.shards.find(partition), decide)

    def tell_all(self, decide: Tell[S]) -> None:
        """The same for every shard; shards that are loading get the event once loaded."""
        for loaded in self.shards:
            if loaded.is_current():
                self._tell_or_enqueue(loaded, decide)
            elif not loaded.is_loaded:
                loaded.queue_event(decide)

    def _tell_or_enqueue(self, loaded: LoadedShard[S], decide: Tell[S]) -> None:
        if loaded.is_busy:
            self._enqueue(loaded, lambda: self._tell(loaded, decide))
        else:
            self._tell(loaded, decide)

    def _tell(self, loaded: LoadedShard[S], decide: Tell[S]) -> None:
        now = self._host.clock.now()
        self._run(loaded, decide(loaded.shard, now), now)

    # -- asking in a thread ---------------------------------------------------------------------

    def _enqueue(self, loaded: LoadedShard[S], work: Callable[[], Awaitable[None] | None]) -> None:
        if loaded.enqueue(work):
            self._host.tasks.spawn(self._run_queue(loaded))

    async def _run_queue(self, loaded: LoadedShard[S]) -> None:
        try:
            await loaded.run_queue()
        except Exception as error:
            # A bug, and the shard may be half changed.
            self._host.fail(error)
            raise
        self._host.waiting.serve()
        self._arm_for(loaded, self._host.clock.now())  # its deadlines were not checked meanwhile

    async def _ask_queued(
        self, loaded: LoadedShard[S], decide: Decide[S], ticket: Ticket, is_large: IsLarge[S] | None
    ) -> None:
        now = self._host.clock.now()
        is_apart = is_large is not None and is_large(loaded.shard)
        try:
            if is_apart:
                outcome = await asyncio.to_thread(decide, loaded.shard, ticket, now)
            else:
                outcome = decide(loaded.shard, ticket, now)
        except Exception as error:  # noqa: BLE001 - a bug, before anything was appended
            loaded.refuse((Reply(ticket, _MARKER_WRITTEN),), error)
            return
        if not loaded.is_current():
            return  # the shard was dropped, and its requests were refused
        if not is_apart or not outcome.records:
            self._run(loaded, outcome, now)
            return
        writer = self._writer
        try:
            for chunk in writer.chunks(loaded, outcome):
                base_offset = writer.append_chunk(loaded, chunk, outcome.producer, now)
                await asyncio.to_thread(writer.replay, loaded, chunk, base_offset, outcome.producer)
                if not loaded.is_current():
                    return  # the next shard would miss the remaining chunks: it may be loaded
        except Rejected as refusal:
            self._not_written(loaded, outcome.replies, refusal)
        else:
            self._run(loaded, outcome._replace(records=()), now)

    # -- carrying out ---------------------------------------------------------------------

    def _carry_out(self, loaded: LoadedShard[S], outcome: Outcome, own: Ticket, now: Millis) -> Any:
        """Append, replay and deliver the replies; returns the reply to ``own``."""
        replies, effects = outcome.replies, outcome.effects
        if outcome.records:
            try:
                self._writer.write(loaded, outcome, now)
            except Rejected as refusal:
                was_own = self._not_written(loaded, replies, refusal, own)
                if was_own or not loaded.is_loaded:
                    self._arm_for(loaded, now)
                    raise
                effects = replies = ()
        answer: Any = None
        if loaded.is_committed:
            answer = loaded.reply(replies, own)
            if effects:
                loaded.run_effects(effects)
        elif replies or effects:
            self._hold_back(loaded, replies, effects, now)
        self._arm_for(loaded, now)
        return loaded.future(own) if answer is None else answer

    def _run(self, loaded: LoadedShard[S], outcome: Outcome, now: Millis) -> None:
        """Carry out an outcome that no request waits for directly."""
        replies, effects = outcome.replies, outcome.effects
        if outcome.records:
            try:
                self._writer.write(loaded, outcome, now)
            except Rejected as refusal:
                self._not_written(loaded, replies, refusal)
                replies, effects = (), ()
        if replies or effects:
            if loaded.is_committed:
                loaded.reply(replies)
                loaded.run_effects(effects)
            else:
                self._hold_back(loaded, replies, effects, now)
        self._arm_for(loaded, now)

    def _not_written(
        self,
        loaded: LoadedShard[S],
        replies: tuple[Reply, ...],
        refusal: Rejected,
        own: Ticket | None = None,
    ) -> bool:
        """Refuse the replies to an unwritten decision; returns whether ``own`` is one of them."""
        if isinstance(refusal, WriteFailed):
            was_own = any(ticket == own for ticket, _ in replies)
            self.shards.drop(loaded, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return was_own
        return loaded.refuse(replies, refusal, own)

    def _hold_back(
        self,
        loaded: LoadedShard[S],
        replies: tuple[Reply, ...],
        effects: tuple[object, ...],
        now: Millis,
    ) -> None:
        config = self._host.dynamic_config.config
        deadline = now + config.int("offsets.commit.timeout.ms")
        if not loaded.holds_back:
            self._host.waiting.park(loaded, (loaded.replica,))
        loaded.hold_back(replies, effects, deadline)
        self._deadlines.arm(deadline, now)

    # -- markers --------------------------------------------------------------------------

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
        """End a transaction in this partition; None if the marker is committed, else a future."""
        loaded = self.shards.find(partition)
        now = self._host.clock.now()

        def write() -> None:
            try:
                self._writer.write_marker(
                    loaded,
                    now,
                    producer=ProducerStamp(producer_id, producer_epoch),
                    coordinator_epoch=coordinator_epoch,
                    committed=committed,
                    transaction_version=transaction_version,
                )
            except WriteFailed:
                self.shards.drop(loaded, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                raise

        self._last_ticket += 1
        reply = Reply(Ticket(self._last_ticket), _MARKER_WRITTEN)
        if loaded.is_busy:
            future = loaded.future(reply.ticket)
            self._enqueue(loaded, lambda: self._write_queued(loaded, write, reply, now))
            return future
        write()
        if loaded.is_committed:
            return None
        future = loaded.future(reply.ticket)
        self._hold_back(loaded, (reply,), (), now)
        return future

    def _write_queued(
        self, loaded: LoadedShard[S], write: Callable[[], None], reply: Reply, now: Millis
    ) -> None:
        try:
            write()
        except Rejected as refusal:
            loaded.refuse((reply,), refusal)
        else:
            self._run(loaded, Outcome(replies=(reply,)), now)

    # -- loaded ---------------------------------------------------------------------------

    def _loaded(self, loaded: LoadedShard[S]) -> None:
        now = self._host.clock.now()
        self._run(loaded, loaded.shard.loaded(now), now)
        for decide in loaded.take_queued_events():
            if not loaded.is_current():
                break  # a decision could not be written: the shard was dropped
            self._run(loaded, decide(loaded.shard, now), now)

    def close(self) -> None:
        """Drop all shards, and refuse all waiting requests."""
        self._deadlines.close()
        self.shards.close()

    # -- time -----------------------------------------------------------------------------

    def _arm_for(self, loaded: LoadedShard[S], now: Millis) -> None:
        deadline = loaded.shard.next_deadline()
        if deadline is not None and deadline < self._deadlines.next and loaded.is_loaded:
            self._deadlines.arm(deadline, now)

    def wake(self) -> None:
        loop = self._host.loop
        give_way_at = loop.time() + _TICK_BUDGET_S
        next_at = NEVER
        now = self._host.clock.now()
        for loaded in self.shards:
            if not loaded.is_current():
                continue
            next_at = min(next_at, loaded.refuse_overdue(now))
            if loaded.is_busy:
                continue  # the shard itself is ticked when it is free
            while (deadline := loaded.shard.next_deadline()) is not None:
                if deadline > now or loop.time() > give_way_at:
                    next_at = min(next_at, deadline)
                    break
                self._run(loaded, loaded.shard.tick(now), now)
                if not loaded.is_current():
                    break
        self._deadlines.arm(next_at, now)
