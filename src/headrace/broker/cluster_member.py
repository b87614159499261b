"""A broker as a member of a cluster: what it has in addition to the parts of a standalone node.

The start of a member, in this order: open a session, know the broker id, lock the logs, agree on
the cluster id, load and watch the settings, open the logs and set strays aside, serve, register,
be a candidate for controller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.controlled_shutdown import shut_down
from headrace.broker.controller.allocated_producer_ids import AllocatedProducerIds
from headrace.broker.controller.member_controller import MemberController
from headrace.broker.member_directories import MemberDirectories
from headrace.broker.membership import Membership, Sessions
from headrace.broker.metadata.config_watch import ConfigWatch
from headrace.broker.random_ids import draw_cluster_id
from headrace.broker.sessions import open_first_session
from headrace.coordination import paths
from headrace.coordination.assignments import load_assignments
from headrace.coordination.current_session import CurrentSession
from headrace.coordination.embedded import FILE_NAME as EMBEDDED_TREE
from headrace.coordination.registry import Registry
from headrace.coordination.tree import ANY_VERSION, OutcomeUnknown, SessionLost
from headrace.core import features
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.errors import ConfigError
from headrace.model.ids import BrokerId, TopicId

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.services import Parts
    from headrace.broker.tasks import BackgroundTasks
    from headrace.model.config import BrokerConfig
    from headrace.storage.log_manager import LogManager
    from headrace.world.world import World

_log = logging.getLogger("headrace.broker")

_UNREGISTERED = -1  # the broker epoch before the registration
_STEP_TRIES = 5

Result = TypeVar("Result")


class ClusterMember:
    """Await ``open_session`` and ``load``; ``join`` once connections are accepted."""

    def __init__(
        self,
        sessions: Sessions,
        config: "BrokerConfig",
        logs: "LogManager",
        known_id: int | None,
        world: "World",
        tasks: "BackgroundTasks",
        fail: Callable[[BaseException], None],
    ) -> None:
        """The cluster chooses the broker id if ``known_id`` is None. ``fail`` stops the broker."""
        self._sessions = sessions
        self._config = config
        self._logs = logs
        self._known_id = known_id
        self._world = world
        self._tasks = tasks
        self._fail = fail
        self._tree: CurrentSession | None = None
        self._parts: Parts
        self._metadata_cache: MetadataCache
        self._controller_id: Callable[[], BrokerId]
        self._topics_at_start: AbstractSet[str] = frozenset()
        self.broker_id: BrokerId
        self.cluster_id: str
        self.registry: Registry
        self.membership: Membership
        self.directories: MemberDirectories
        self.controller: MemberController
        self.producer_ids: AllocatedProducerIds

    async def open_session(self) -> None:
        """Open a session and lock the logs."""
        tree = self._tree = CurrentSession(await open_first_session(self._sessions))
        broker_id = self._known_id
        if broker_id is None:
            broker_id = await _draw_broker_id(tree, self._config)
        self.broker_id = BrokerId(broker_id)
        self._logs.directories.lock(broker_id)
        self._refuse_embedded_tree()
        self.registry = Registry(tree, self.broker_id)
        self.directories = MemberDirectories(self.registry, self._logs, self.broker_id, self._tasks)
        self.membership = Membership(
            tree,
            self._sessions,
            broker_id=self.broker_id,
            world=self._world,
            fail=self._fail,
            begin_term=lambda *election: self.controller.begin_term(*election),
            losses_reported=self._logs.directories.losses_reported,
        )

    def _refuse_embedded_tree(self) -> None:
        traces = self._logs.directories.traces_of(EMBEDDED_TREE)
        if traces:
            raise ConfigError(
                f"{traces[0]} has the topics and settings of a standalone node, which the cluster "
                "does not know. Carry them over with 'headrace migrate-to-zookeeper', or choose "
                "empty log.dirs"
            )

    async def load(self, parts: "Parts", metadata_cache: "MetadataCache") -> None:
        """Agree on the cluster id, load the settings, open the logs."""
        assert self._tree is not None, "open_session comes first"
        tree = self._tree
        self._parts = parts
        self._metadata_cache = metadata_cache
        metadata_cache.hold()
        self._controller_id = lambda: metadata_cache.current.controller_id
        self.producer_ids = AllocatedProducerIds(
            parts.peers,
            self._tasks,
            self.broker_id,
            lambda: self.membership.broker_epoch,
            self._controller_id,
        )
        self.controller = MemberController(
            self.registry,
            self.broker_id,
            parts.dynamic_config,
            metadata_cache,
            parts.peers,
            parts.replicas,
            self._world,
            self._tasks,
            self._fail,
            self.membership.tell_directory_failed,
        )
        first_session = tree.session
        await self._in_a_session(lambda: self._agree_on_cluster_id(tree))
        metadata_cache.set_cluster_id(self.cluster_id)
        replicas, dynamic_config = parts.replicas, parts.dynamic_config

        def apply_to_topic(topic: str) -> None:
            replicas.update_topic_config(topic, dynamic_config.topic_config(topic))
            self.controller.settings_changed()

        config_watch = ConfigWatch(
            dynamic_config,
            self._world,
            self._tasks,
            lambda: dict.fromkeys(replica.topic_partition.topic for replica in replicas),
            apply_to_topic,
        )
        await self._in_a_session(config_watch.load)
        await self._read_features(metadata_cache)
        pending = await self._in_a_session(self.directories.load_pending_deletions)
        await self._open_logs(pending)
        assignments = await self._in_a_session(lambda: load_assignments(tree))
        await self._in_a_session(lambda: self.directories.settle(assignments, pending))
        deleted = await self._in_a_session(self.registry.watched.delete_requests)
        self._topics_at_start = assignments.keys() - deleted

        async def catch_up() -> None:
            metadata_cache.keep_only_topics(await load_assignments(tree))
            await config_watch.load()
            await self._read_features(metadata_cache)
            self.directories.record_again()

        if tree.session is not first_session:
            await self._in_a_session(catch_up)  # watches end with their session
        self.membership.on_new_session(catch_up)

    async def _in_a_session(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """Run one step of the start; if the session ends meanwhile, again in another session.

        On a busy machine a session may end, and the broker must start nevertheless.
        """
        assert self._tree is not None
        for _ in range(_STEP_TRIES - 1):
            try:
                return await step()
            except SessionLost:
                _log.warning("The session ended during the start of the broker; opening another")
                self._tree.renew(await open_first_session(self._sessions))
        return await step()

    async def _agree_on_cluster_id(self, tree: CurrentSession) -> None:
        known = None if self._logs.directories.cluster_is_new else self._logs.directories.cluster_id
        if (
            known is not None
            and self._logs.directories.has_partitions()
            and await tree.get(paths.CLUSTER_ID) is None
        ):
            # In an empty tree every directory would be a stray.
            raise ConfigError(
                f"The log directories have partitions of cluster {known}, but there is no cluster "
                "at the address in zookeeper.connect. Correct the host or the path, or choose "
                "empty log.dirs"
            )
        self.cluster_id = await self.registry.settle_cluster_id(
            known, draw_cluster_id(self._world.random)
        )
        self._logs.directories.adopt_cluster(self.cluster_id)

    async def _open_logs(self, pending_deletions: Collection[TopicId]) -> None:
        """Open the logs in a thread.

        A recovery may take longer than the session timeout, and a blocked event loop would lose
        the session.
        """
        opening = asyncio.get_running_loop().run_in_executor(
            None, self._logs.open_all, self._world.now(), pending_deletions
        )
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])  # only then can the logs be closed
            raise

    async def _read_features(self, metadata_cache: "MetadataCache") -> None:
        """Read the feature levels, now and whenever they change."""

        def changed(path: str) -> None:
            self._tasks.spawn(self._read_features(metadata_cache))

        with suppress(SessionLost):  # the next session reads them
            found = await self.registry.watched.features(changed)
            if found is not None:
                metadata_cache.publish_features(found.levels, found.epoch)

    def replicate(self) -> None:
        """Follow leaders on other brokers, and serve followers, from now on."""
        self._parts.replicas.start(
            self._parts.peers,
            self._parts.dynamic_config,
            broker_epoch=lambda: self.membership.broker_epoch,
            fail=self._fail,
        )

    async def join(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Register, and wait for the first metadata."""
        entry = BrokerEntry(
            self.broker_id,
            endpoints,
            self._config.optional_str("broker.rack"),
            _UNREGISTERED,
            features.SUPPORTED,
            self._logs.directories.may_have_lost_records or self.directories.are_logs_missing,
        )
        await self.membership.join(entry)
        await self.membership.wait_for_metadata(
            lambda: self._topics_at_start <= self._metadata_cache.current.topics.keys()
        )
        self._metadata_cache.release()
        self.producer_ids.prefetch()

    async def leave(self, *, clean: bool) -> None:
        """Give up leaderships, then the controllership. The registration lasts until ``close``.

        While the tree is out of reach nothing can move, and the stop does not wait for its return:
        others take over when the session has expired.
        """
        if clean and not self.membership.is_connected:
            _log.warning(
                "Stopping without a controlled shutdown: no connection to the cluster metadata"
            )
            clean = False
        # The last broker has no other to move its leaderships to.
        if (
            clean
            and self._config.bool("controlled.shutdown.enable")
            and self._metadata_cache.current.brokers.keys() - {self.broker_id}
            and await shut_down(
                self._parts.peers,
                self._parts.dynamic_config.config,
                self.broker_id,
                lambda: self.membership.broker_epoch,
                self._controller_id,
            )
        ):
            # This broker is in no ISR now. A leader would add it again while it fetches.
            await self._parts.replicas.stop()
        await self.membership.resign()
        if clean:
            with suppress(TimeoutError):  # by then the session has expired
                async with asyncio.timeout(self._sessions.timeout_ms / 1000):
                    await self.membership.release_controllership()

    async def close(self) -> None:
        """Close the session: from now on this broker is not registered."""
        if self._tree is not None:
            await self._tree.close()


async def _draw_broker_id(tree: CurrentSession, config: "BrokerConfig") -> int:
    """A broker id that no broker of the cluster has had, above reserved.broker.max.id."""
    if not config.bool("broker.id.generation.enable"):
        raise ConfigError(
            "broker.id is not set, and broker.id.generation.enable is false: set one of them"
        )
    while True:
        try:
            drawn = await tree.set(paths.BROKER_SEQUENCE, b"", ANY_VERSION)
        except OutcomeUnknown:
            continue  # a skipped number does not matter
        return config.int("reserved.broker.max.id") + drawn.zk_version
