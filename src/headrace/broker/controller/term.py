"""One term as controller: decide from the replayed state, write guarded, replay, then send.

Changes run one at a time: each takes a ``turn``. A turn that meets a newer controller or the end
of the session ends the term, which then writes and sends nothing more.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from headrace.broker.controller.broker_channels import BrokerChannels
from headrace.coordination.registry import Registry
from headrace.coordination.term_store import TermStore
from headrace.coordination.topic_store import LoadedTopics
from headrace.coordination.tree import SessionLost
from headrace.core.controller import NEW_PARTITION, ChangePartition, Controller
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import ErrorCode, Fenced, Rejected
from headrace.model.ids import BrokerId, TopicPartition

_log = logging.getLogger("headrace.controller")

Decide = Callable[[Iterable[PartitionState]], list[ChangePartition]]


class Term:
    def __init__(
        self,
        registry: Registry,
        store: TermStore,
        controller: Controller,
        channels: BrokerChannels,
        on_end: Callable[[], None],
    ) -> None:
        """``on_end`` is called once if the term ends because of a newer controller or session."""
        self.registry = registry
        self.store = store
        self.controller = controller
        self.channels = channels
        self.ended = False
        self._on_end = on_end
        self._lock = asyncio.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._created_zxids: dict[TopicPartition, int] = {}  # of the first state

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the changes before. Raises Rejected(NOT_CONTROLLER) once the term has ended."""
        async with self._lock:
            self._check()
            try:
                yield
            except (Fenced, SessionLost) as error:
                if not self.ended:
                    _log.warning("This broker is no longer the controller: %s", error)
                    self.end()
                    self._on_end()
                self._check()

    def _check(self) -> None:
        if self.ended:
            raise Rejected(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")

    def end(self) -> None:
        """Write and send nothing more."""
        self.ended = True
        self.store.end()
        self.channels.close_all()
        for listener in self._listeners:
            listener()

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the term ends, for whatever reason."""
        self._listeners.append(listener)

    # --- within a turn

    def loaded(self, loaded: LoadedTopics) -> None:
        """Take over topics that were read from the tree."""
        self._created_zxids.update(loaded.created_zxids)
        self.controller.found(loaded.topics.values())

    async def change(
        self, states: Iterable[PartitionState], decide: Decide
    ) -> list[PartitionState]:
        """Decide, write and replay; returns the new states.

        A state that another process has changed is read again, and decided again.
        """
        changed: list[PartitionState] = []
        while changes := decide(states):
            result = await self.store.write_states(changes)
            self.controller.replay(result.written)
            for change in result.written:
                changed.append(change.state)
                if change.expected == NEW_PARTITION:
                    topic_partition = change.state.topic_partition
                    self._created_zxids[topic_partition] = result.zxids[topic_partition]
            if not result.stale:
                break
            states = await self.reload(result.stale)
        return changed

    async def reload(self, topic_partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        """Read states again that another process has changed, tell all brokers, and return them."""
        stale = list(topic_partitions)
        _log.warning("Another process changed the state of %s; reading it again", stale[0])
        names = list(dict.fromkeys(each.topic for each in stale))
        await self.registry.sync()
        self.loaded(
            await self.registry.topics.load(
                names, self.controller.metadata.brokers, skips_unreadable=True
            )
        )
        found = [self.controller.metadata.partition(*each) for each in stale]
        states = [state for state in found if state is not None]
        self.channels.update_metadata(states)
        return states

    # --- sending

    def tell(self, states: Iterable[PartitionState], *, begins: bool = False) -> None:
        """Tell replicas their roles, and all brokers the new states.

        ``begins``: a reassignment begins now, so the added replicas have no log yet.
        """
        changed = list(states)
        for state in changed:
            for broker_id in state.replicas:
                is_added = begins and broker_id in state.adding and broker_id not in state.isr
                self.tell_replica(broker_id, state, is_new=is_added)
        self.channels.update_metadata(changed)

    def tell_replica(
        self, broker_id: BrokerId, state: PartitionState, *, is_new: bool = False
    ) -> None:
        if broker_id not in self.channels or state.partition_epoch == NEW_PARTITION:
            return
        channel = self.channels[broker_id]
        # A broker that registered before the partition was created has not lost its log: if it
        # has none, no controller has told it yet.
        created_zxid = self._created_zxids.get(state.topic_partition, 0)
        is_new = is_new or channel.broker_epoch < created_zxid
        channel.lead_or_follow(state, is_new=is_new)

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            self._created_zxids.pop(topic_partition, None)
