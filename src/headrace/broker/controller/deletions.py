"""Topic deletions in a cluster. A deletion waits for all replicas, even on brokers that are down.

    1. the request, written by any broker or tool    from here on the deletion is certain
    2. UpdateMetadata with leader -2                  clients get UNKNOWN_TOPIC_OR_PARTITION
    3. StopReplica to every replica, then StopReplica that also deletes the files
    4. delete the nodes, and the request last         the name can be used again

A term that ends in between leaves the request, and the next term begins with step 2 again.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.controller.broker_channels import Stopped
from headrace.broker.controller.broker_requests import DELETION_EPOCH, Stop, being_deleted
from headrace.broker.controller.events import Events
from headrace.broker.controller.term import Term
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.coordination import paths
from headrace.core.controller import DeleteTopic, MarkForDeletion
from headrace.model.cluster_metadata import PartitionState, TopicState
from headrace.model.ids import BrokerId, TopicPartition
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.broker.tasks import BackgroundTasks

_log = logging.getLogger("headrace.controller")


class _Deletion:
    """The deletion of one topic. ``settled`` is set once only brokers that are down remain."""

    def __init__(self, topic: TopicState) -> None:
        self.topic = topic
        self.left: dict[BrokerId, list[TopicPartition]] = {}  # replicas with files, by broker
        for state in topic.partitions:
            for broker_id in state.replicas:
                self.left.setdefault(broker_id, []).append(state.topic_partition)
        self.tried: set[tuple[BrokerId, int]] = set()  # brokers, with their epochs
        self.stopping = False
        self.settled = asyncio.Event()


class Deletions:
    def __init__(
        self,
        term: Term,
        events: Events,
        dynamic_config: DynamicConfig,
        tasks: "BackgroundTasks",
    ) -> None:
        self._term = term
        self._events = events
        self._dynamic_config = dynamic_config
        self._tasks = tasks
        self._pending: dict[str, _Deletion] = {}
        term.on_end(self._release)

    @property
    def states(self) -> Iterable[PartitionState]:
        """The partitions that brokers must forget."""
        return (
            being_deleted(state)
            for deletion in self._pending.values()
            for state in deletion.topic.partitions
        )

    # --- within a turn

    async def request(self, topics: Sequence[TopicState]) -> None:
        """Write the requests to delete these topics."""
        for topic in topics:
            await self._term.store.request_deletion(topic.name)
            self.mark(topic)

    async def requested(self, names: Iterable[str]) -> None:
        """Delete these topics, as clients, tools or an earlier term requested."""
        enabled = self._dynamic_config.config.bool("delete.topic.enable")
        for name in names:
            topic = self._term.controller.metadata.topics.get(name)
            if name in self._pending:
                continue
            if topic is not None and enabled:
                self.mark(topic)
                continue
            if topic is not None:
                _log.warning(
                    "Ignoring the request to delete topic %s: delete.topic.enable is false", name
                )
            await self._term.store.delete(paths.delete_topic(name))

    def mark(self, topic: TopicState) -> None:
        """Clients no longer see the topic."""
        self._term.controller.replay([MarkForDeletion(topic.name)])
        self._pending[topic.name] = _Deletion(topic)
        self._term.channels.update_metadata(map(being_deleted, topic.partitions))

    # --- outside of a turn

    async def proceed(self) -> None:
        """Continue all deletions as far as the live brokers allow."""
        for deletion in list(self._pending.values()):
            if deletion.stopping:
                continue
            untried = self._brokers_to_ask(deletion)
            if not deletion.left:
                await self._finish(deletion)
            elif untried:
                deletion.stopping = True
                self._tasks.spawn(self._stop_replicas(deletion, untried))
            elif not deletion.settled.is_set():
                _log.warning(
                    "Topic %s will be completely deleted when these brokers are back: %s",
                    deletion.topic.name,
                    ", ".join(map(str, sorted(deletion.left))),
                )
                deletion.settled.set()

    def _brokers_to_ask(self, deletion: _Deletion) -> list[BrokerId]:
        channels = self._term.channels
        return [
            broker_id
            for broker_id in deletion.left
            if broker_id in channels
            and (broker_id, channels[broker_id].broker_epoch) not in deletion.tried
        ]

    async def settled(self, names: Iterable[str], timeout_s: float) -> None:
        """Wait until these topics are deleted, only brokers that are down remain, or time is up."""
        loop = asyncio.get_running_loop()
        waiting = [
            loop.create_task(deletion.settled.wait())
            for name in names
            if (deletion := self._pending.get(name)) is not None
        ]
        if waiting:
            _, pending = await asyncio.wait(waiting, timeout=max(0.0, timeout_s))
            for task in pending:
                task.cancel()

    def _release(self) -> None:
        """Wake everything that waits: the term has ended, and the next one continues."""
        for deletion in self._pending.values():
            deletion.settled.set()

    async def _stop_replicas(self, deletion: _Deletion, brokers: Sequence[BrokerId]) -> None:
        channels = self._term.channels
        for delete in (False, True):
            answers: dict[BrokerId, asyncio.Future[Stopped]] = {}
            for broker_id in brokers:
                if broker_id in channels:
                    channel = channels[broker_id]
                    deletion.tried.add((broker_id, channel.broker_epoch))
                    for topic_partition in deletion.left[broker_id]:
                        channel.stop_replica(topic_partition, Stop(DELETION_EPOCH, delete))
                    answers[broker_id] = channel.acknowledged()
            for broker_id, answer in answers.items():
                failed = await answer
                if delete and failed is not None:
                    self._deleted(deletion, broker_id, failed)
        deletion.stopping = False
        if not self._term.ended:
            self._events.post(self.proceed)

    @staticmethod
    def _deleted(
        deletion: _Deletion, broker_id: BrokerId, failed: Sequence[TopicPartition]
    ) -> None:
        still = [each for each in deletion.left[broker_id] if each in failed]
        if still:
            _log.error("Broker %d could not delete %s", broker_id, ", ".join(map(str, still)))
            deletion.left[broker_id] = still
        else:
            del deletion.left[broker_id]

    async def _finish(self, deletion: _Deletion) -> None:
        topic = deletion.topic
        async with self._term.turn():
            if self._pending.get(topic.name) is not deletion:
                return
            if not await self._term.store.delete_topic(topic.name):
                self._events.post(self.proceed)
                return
            self._term.controller.replay([DeleteTopic(topic)])
            self._term.forget(state.topic_partition for state in topic.partitions)
            self._dynamic_config.remember(ResourceType.TOPIC, topic.name, {})
            del self._pending[topic.name]
        deletion.settled.set()
        _log.info("Deleted topic %s", topic.name)
