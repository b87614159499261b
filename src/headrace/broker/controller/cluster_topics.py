"""Creates topics of a cluster and adds partitions, on request or when another program writes them.

A topic is created in two steps. First its replicas are assigned: from then on the topic exists.
Then each new partition gets its first state, with a leader. A term that ends between the two steps
leaves partitions without a state, and the next term finds them.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.controller import topic_requests
from headrace.broker.controller.broker_requests import being_deleted
from headrace.broker.controller.events import Events
from headrace.broker.controller.term import Term
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.random_ids import draw_topic_id
from headrace.coordination.topic_store import LoadedTopics, as_new, without_leaders
from headrace.coordination.tree import Watch
from headrace.core import elections, topic_changes
from headrace.core.controller import (
    NEW_PARTITION,
    AddPartitions,
    ChangePartition,
    CreateTopic,
    DeleteTopic,
    MarkForDeletion,
)
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, BrokerId
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.world.world import World

_log = logging.getLogger("headrace.controller")

_NEW_PER_EVENT = 200  # so that ISR changes do not wait long


class ClusterTopics:
    def __init__(
        self,
        term: Term,
        events: Events,
        dynamic_config: DynamicConfig,
        world: "World",
        watch_topic: Watch,
    ) -> None:
        """``watch_topic`` is called when the replicas of a topic change."""
        self._term = term
        self._events = events
        self._dynamic_config = dynamic_config
        self._world = world
        self._watch_topic = watch_topic

    # --- requests

    async def create(
        self, requests: Sequence[NewTopic], *, validate_only: bool, timeout_s: float
    ) -> list[CreateTopic | Rejected]:
        """One result per request. Created topics have leaders, and all live brokers know them."""
        term = self._term
        give_up_at = asyncio.get_running_loop().time() + timeout_s
        async with term.turn():
            answers = topic_requests.decide_creates(
                term.controller, requests, self._dynamic_config, self._world
            )
        if validate_only:
            return answers
        for index, answer in enumerate(answers):
            if isinstance(answer, CreateTopic):
                # One turn per topic: ISR changes must not wait for a thousand topics.
                async with term.turn():
                    answers[index] = await self._create(answer)
        created = any(isinstance(each, CreateTopic) for each in answers)
        if created and not await self._wait_for_leaders(give_up_at):
            late = Rejected(
                ErrorCode.REQUEST_TIMED_OUT, "The topic was created, but it has no leaders yet."
            )
            return [late if isinstance(each, CreateTopic) else each for each in answers]
        return answers

    async def _create(self, change: CreateTopic) -> CreateTopic | Rejected:
        topic = change.topic
        try:
            await self._term.store.create_topic(without_leaders(topic), change.overrides)
        except Rejected as refusal:
            return refusal
        self._dynamic_config.remember(ResourceType.TOPIC, topic.name, change.overrides)
        await self._found([topic.name])
        _log.info("Created topic %s; partitions: %d", topic.name, len(topic.partitions))
        return change

    async def grow(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None,
        *,
        validate_only: bool,
        timeout_s: float,
    ) -> AddPartitions:
        """Increase a topic to ``count`` partitions. Raises Rejected."""
        term = self._term
        give_up_at = asyncio.get_running_loop().time() + timeout_s
        async with term.turn():
            change = topic_changes.decide_add_partitions(term.controller, name, count, assignments)
            if validate_only:
                return change
            before = term.controller.metadata.topics[name]
            added = as_new(change.added)
            topic = before._replace(partitions=before.partitions + added)
            await term.store.assign(topic, before)
            term.controller.found([topic])
        _log.info("Added %d partitions to topic %s; it now has %d", len(added), name, count)
        if not await self._wait_for_leaders(give_up_at):
            raise Rejected(
                ErrorCode.REQUEST_TIMED_OUT,
                "The partitions were added, but they have no leaders yet.",
            )
        return change

    async def _wait_for_leaders(self, give_up_at: float) -> bool:
        """Wait for leaders, and for live brokers to know them; False if there are none in time."""
        loop = asyncio.get_running_loop()
        # The election is an event of its own: a client that disconnects must not interrupt it.
        while self._next_new_partitions():
            elections_done = self._events.post(self.elect_first_leaders)
            done, _ = await asyncio.wait(
                [elections_done], timeout=max(0.0, give_up_at - loop.time())
            )
            if not done:
                return False
            refusal = elections_done.result()
            if refusal is not None:
                raise refusal
        await self._term.channels.acknowledged(give_up_at - loop.time())
        return True

    # --- topics that other programs wrote

    async def names_changed(self, names: Sequence[str]) -> None:
        """Within a turn: these topics exist in the tree. Then call ``elect_first_leaders``."""
        controller = self._term.controller
        await self._found(
            [
                name
                for name in names
                if name not in controller.metadata.topics
                and name not in controller.pending_deletion
            ]
        )
        for name in [name for name in controller.metadata.topics if name not in names]:
            topic = controller.metadata.topics[name]
            _log.error("Another program deleted topic %s from the cluster metadata", name)
            controller.replay([MarkForDeletion(name), DeleteTopic(topic)])
            self._term.forget(state.topic_partition for state in topic.partitions)
            self._term.channels.update_metadata(map(being_deleted, topic.partitions))

    async def _found(self, names: Sequence[str]) -> None:
        if not names:
            return
        term = self._term
        loaded = await term.registry.topics.load(
            names,
            term.controller.metadata.brokers,
            self._watch_topic,
            skips_unreadable=True,
        )
        for name in loaded.topics:
            await self._read_settings(name)
        await self.topics_loaded(loaded)

    async def topics_loaded(self, loaded: LoadedTopics) -> None:
        """Within a turn: take over topics. A topic that an old tool created gets an id."""
        for name, topic in loaded.topics.items():
            if topic.topic_id == NO_TOPIC_ID:
                topic_id = draw_topic_id(self._world.random)
                states = tuple(state._replace(topic_id=topic_id) for state in topic.partitions)
                loaded.topics[name] = topic._replace(topic_id=topic_id, partitions=states)
                await self._term.store.assign(loaded.topics[name], topic)
        self._term.loaded(loaded)
        # Clients see a topic at once, even if none of its brokers is alive.
        self._term.channels.update_metadata(
            state
            for name in loaded.topics
            for state in self._term.controller.metadata.topics[name].partitions
            if state.partition_epoch == NEW_PARTITION and len(state.offline) == len(state.replicas)
        )

    async def _read_settings(self, name: str) -> None:
        overrides = await self._term.registry.configs.read("topics", name)
        self._dynamic_config.remember(ResourceType.TOPIC, name, overrides)

    async def replicas_changed(self, names: Sequence[str]) -> None:
        """Within a turn: the nodes of these topics changed. Then call ``elect_first_leaders``."""
        term = self._term
        live = term.controller.metadata.brokers
        loaded = await term.registry.topics.load(
            names, live, self._watch_topic, skips_unreadable=True
        )
        for name, topic in loaded.topics.items():
            known = term.controller.metadata.topics.get(name)
            if known is None or known.topic_id != topic.topic_id:
                continue
            added = topic.partitions[len(known.partitions) :]
            if added:
                grown = known._replace(partitions=known.partitions + added)
                term.controller.found([grown])

    # --- first leaders

    async def elect_first_leaders(self) -> None:
        """Give partitions without a state a leader, if one of their replicas is alive.

        Each event handles some partitions and posts the next event, so that others need not wait.
        """
        term = self._term
        async with term.turn():
            changed = await term.change(self._next_new_partitions(), self._decide_first_leaders)
            term.tell(changed)
        if changed:
            self._events.post(self.elect_first_leaders)

    def _next_new_partitions(self) -> list[PartitionState]:
        controller = self._term.controller
        live = controller.metadata.brokers
        able = (
            state
            for state in controller.states()
            if state.partition_epoch == NEW_PARTITION
            and any(controller.can_serve(state, broker, live) for broker in state.replicas)
        )
        return list(islice(able, _NEW_PER_EVENT))

    def _decide_first_leaders(self, states: Iterable[PartitionState]) -> list[ChangePartition]:
        return elections.decide_brokers(self._term.controller, states, (), elections.KAFKA_DEFAULTS)
