"""The controller of a cluster, for one term: takes over, follows the tree, answers requests.

It watches brokers, topics and requests in the tree. Each change is an event: decide, write, replay,
send (``term``). When a newer controller or the end of the session stops it, ``on_fenced`` is
called, and the broker may stand for election again, with a new ``ClusterController``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.controller import topic_requests
from headrace.broker.controller.broker_channels import BrokerChannels
from headrace.broker.controller.broker_requests import Sender
from headrace.broker.controller.cluster_topics import ClusterTopics
from headrace.broker.controller.deletions import Deletions
from headrace.broker.controller.events import Events
from headrace.broker.controller.feature_levels import Features
from headrace.broker.controller.leaders import Leaders
from headrace.broker.controller.live_brokers import LiveBrokers
from headrace.broker.controller.reassignments import Reassignments
from headrace.broker.controller.rebalancing import Rebalancing
from headrace.broker.controller.term import Term
from headrace.broker.controller.tree_notices import TreeNotices
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.coordination import paths
from headrace.coordination.registry import Elected, Registry
from headrace.core import elections
from headrace.core.controller import AddPartitions, ChangePartition, Controller, CreateTopic
from headrace.core.elections import IsrProposal
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import (
    ClusterMetadata,
    PartitionState,
    TopicState,
)
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicId, TopicPartition

if TYPE_CHECKING:
    from headrace.broker.peers import Peers
    from headrace.broker.tasks import BackgroundTasks
    from headrace.world.world import World

_log = logging.getLogger("headrace.controller")


class ClusterController:
    def __init__(
        self,
        registry: Registry,
        elected: Elected,
        *,
        broker_id: BrokerId,
        cluster_id: str,
        dynamic_config: DynamicConfig,
        peers: "Peers",
        world: "World",
        tasks: "BackgroundTasks",
        fail: Callable[[BaseException], None],
        on_fenced: Callable[[], None],
    ) -> None:
        """Create it right after the election, and ``start`` it once.

        ``fail`` stops the broker: after a bug the state of the controller is unknown.
        """
        config = dynamic_config.config
        self._broker_id = broker_id
        self._registry = registry
        self._dynamic_config = dynamic_config
        self._fail = fail
        metadata = ClusterMetadata(cluster_id, broker_id)
        self.controller = Controller(elected.controller_epoch, metadata)
        channels = BrokerChannels(
            peers,
            Sender(broker_id, elected.controller_epoch, config.inter_broker_listener),
            lambda: self.controller.metadata.brokers,
            timeout_s=config.int("controller.socket.timeout.ms") / 1000,
            on_failed=self._replicas_failed,
            fail=fail,
        )
        self._events = Events()
        self.term = Term(registry, registry.term, self.controller, channels, on_fenced)
        self._topics = ClusterTopics(
            self.term, self._events, dynamic_config, world, self._topic_fired
        )
        self._deletions = Deletions(self.term, self._events, dynamic_config, tasks)
        self._leaders = Leaders(self.term, dynamic_config)
        self.reassignments = Reassignments(self.term, self._events)
        self.features = Features(self.term)
        self._brokers = LiveBrokers(
            self.term,
            self._events,
            broker_id,
            self._leaders,
            self.features,
            self._deletions,
            self.reassignments,
        )
        self._rebalancing = Rebalancing(self.term, self._events, self._leaders, dynamic_config)
        self._notices = TreeNotices(self.term, self._events, self._leaders)
        self._changed_topics: dict[str, None] = {}
        self._failed: list[tuple[BrokerId, list[TopicPartition]]] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        return self.term.ended

    @property
    def metadata(self) -> ClusterMetadata:
        return self.controller.metadata

    # --- the term

    async def start(self) -> None:
        """Load everything, repair what the last term left, and tell all live brokers."""
        try:
            async with self.term.turn():
                await self._take_over()
        except Rejected as refusal:
            if refusal.code != ErrorCode.NOT_CONTROLLER:
                raise
            return  # ``on_fenced`` was called
        self._running = asyncio.get_running_loop().create_task(self._events.run())
        self._running.add_done_callback(self._ended)
        for event in (
            self._topics.elect_first_leaders,
            self._deletions.proceed,
            self.reassignments.read_requests,
            self.reassignments.proceed,
            *self._notices.all,
        ):
            self._events.post(event)
        self._rebalancing.start()

    async def _take_over(self) -> None:
        watched, controller, term = self._registry.watched, self.controller, self.term
        # Another session may have written what this session has not seen yet.
        await self._registry.sync()
        brokers = await self._brokers.load()
        loaded = await self._registry.topics.load(
            await watched.topics(self._topics_fired),
            brokers,
            self._topic_fired,
            skips_unreadable=True,
        )
        await self._topics.topics_loaded(loaded)
        await self._deletions.requested(await watched.delete_requests(self._deletions_fired))

        def repair(states: Iterable[PartitionState]) -> list[ChangePartition]:
            return elections.decide_takeover(
                controller, loaded.granted_zxids, self._leaders.rules, states
            )

        changed = await term.change(list(controller.states()), repair)
        await self.reassignments.resume()
        await self.features.check(brokers.values())
        for entry in brokers.values():
            term.channels.open(entry, first=())
        term.tell(controller.states())
        term.channels.update_metadata(self._deletions.states)
        _log.info(
            "Broker %d is the controller in epoch %d; brokers: %d, topics: %d, states repaired: %d",
            self._broker_id,
            controller.controller_epoch,
            len(brokers),
            len(controller.metadata.topics),
            len(changed),
        )

    async def stop(self) -> None:
        """End the term: write and send nothing more."""
        self.term.end()
        self._events.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self.term.channels.wait_closed()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- watches, each set again when its event is handled

    def _post(self, event: Callable[[], Awaitable[None]]) -> None:
        if not self.term.ended:
            self._events.post(event)

    def _topics_fired(self, path: str) -> None:
        self._post(self._topics_changed)

    def _topic_fired(self, path: str) -> None:
        self._changed_topics[path.removeprefix(f"{paths.BROKER_TOPICS}/")] = None
        self._post(self._replicas_changed)

    def _deletions_fired(self, path: str) -> None:
        self._post(self._deletion_requested)

    # --- topics

    async def _topics_changed(self) -> None:
        async with self.term.turn():
            names = await self._registry.watched.topics(self._topics_fired)
            await self._topics.names_changed(names)
        self._post(self._topics.elect_first_leaders)

    async def _replicas_changed(self) -> None:
        async with self.term.turn():
            names, self._changed_topics = list(self._changed_topics), {}
            await self._topics.replicas_changed(names)
        self._post(self._topics.elect_first_leaders)

    async def _deletion_requested(self) -> None:
        async with self.term.turn():
            names = await self._registry.watched.delete_requests(self._deletions_fired)
            await self._deletions.requested(names)
        await self._deletions.proceed()
        self._post(self.reassignments.proceed)

    def _replicas_failed(self, broker_id: BrokerId, failed: list[TopicPartition]) -> None:
        self._failed.append((broker_id, failed))
        self._post(self._handle_failures)

    async def _handle_failures(self) -> None:
        while self._failed:
            broker_id, failed = self._failed.pop(0)
            if broker_id in self.term.channels:
                await self._leaders.replicas_failed(broker_id, failed)

    def settings_changed(self) -> None:
        """Settings of topics changed: one may allow unclean elections now."""
        self._post(self._leaders.elect_where_possible)

    # --- requests

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False, timeout_s: float
    ) -> list[CreateTopic | Rejected]:
        return await self._topics.create(requests, validate_only=validate_only, timeout_s=timeout_s)

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        *,
        validate_only: bool = False,
        timeout_s: float,
    ) -> AddPartitions:
        return await self._topics.grow(
            name, count, assignments, validate_only=validate_only, timeout_s=timeout_s
        )

    async def delete_topics(
        self, wanted: Sequence[str | TopicId], *, timeout_s: float
    ) -> list[TopicState | Rejected]:
        async with self.term.turn():
            answers = topic_requests.find_to_delete(
                self.metadata, wanted, self._dynamic_config.config
            )
            topics = [answer for answer in answers if isinstance(answer, TopicState)]
            await self._deletions.request(topics)
        self._post(self._deletions.proceed)
        self._post(self.reassignments.proceed)
        await self._deletions.settled([topic.name for topic in topics], timeout_s)
        return answers

    async def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[Rejected | None]:
        return await self._leaders.elect(topic_partitions, unclean=unclean)

    async def alter_isr(
        self, broker_id: BrokerId, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[PartitionState | Rejected]:
        answers = await self._leaders.alter_isr(broker_id, broker_epoch, proposals)
        if any(isinstance(each, PartitionState) and each.is_reassigning for each in answers):
            self._post(self.reassignments.proceed)
        return answers

    async def shut_down(self, broker_id: BrokerId, broker_epoch: int) -> list[TopicPartition]:
        return await self._leaders.shut_down(broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> range:
        async with self.term.turn():
            self._leaders.check_broker(broker_id, broker_epoch, ErrorCode.BROKER_ID_NOT_REGISTERED)
            return await self._registry.reserve_producer_ids(broker_id)
