"""One broker: creates its parts, and starts and stops them step by step.

Start: bind the addresses, lock the log directories, open the coordination tree, recover the logs,
take over the cluster metadata, load the coordinators, and only then accept clients. Stop is the
reverse (``lifecycle``). A bug while records are being written stops the broker without a clean
shutdown marker (``fail``), because the state of the logs is unknown then. The host process keeps
running in either case.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.bugs import Bugs
from headrace.broker.clock import SteadyClock
from headrace.broker.controller.producer_ids import ProducerIds
from headrace.broker.controller.service import ControllerService
from headrace.broker.controller.startup import FoundPartition, Startup
from headrace.broker.coordinators.group import GroupCoordinator
from headrace.broker.coordinators.host import Host
from headrace.broker.coordinators.markers import MarkerWriter
from headrace.broker.coordinators.transaction import TransactionCoordinator
from headrace.broker.dispatch import Dispatch
from headrace.broker.handlers import handle
from headrace.broker.handlers.fetch import Fetching
from headrace.broker.handlers.produce import Producing
from headrace.broker.lifecycle import Lifecycle
from headrace.broker.listeners import Listeners
from headrace.broker.metadata.cache import MetadataCache
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.peers import Peers
from headrace.broker.periodic import PeriodicTasks
from headrace.broker.random_ids import draw_fetch_session_id
from headrace.broker.replication.append import Appender
from headrace.broker.replication.effects import Effects
from headrace.broker.replication.log_dir_moves import LogDirMoves
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.broker.replication.waiting import Waiting
from headrace.broker.services import Parts, Services
from headrace.broker.tasks import BackgroundTasks
from headrace.coordination.embedded import FILE_NAME as TREE_FILE
from headrace.coordination.embedded import EmbeddedTree
from headrace.coordination.registry import Registry
from headrace.coordination.tree import Tree
from headrace.core.fetch_session import FetchSessions
from headrace.core.replica_selection import RACK_AWARE_SELECTOR
from headrace.model.config import BrokerConfig, topic_config
from headrace.model.errors import ConfigError
from headrace.model.ids import BrokerId, TopicId, TopicPartition
from headrace.storage.checkpoint import META_PROPERTIES, ZOOKEEPER_SESSION, read_properties
from headrace.storage.log_directory import LogDirectory
from headrace.storage.log_manager import LogManager
from headrace.world.files import SystemFiles
from headrace.world.world import World

if TYPE_CHECKING:
    from headrace.broker.cluster_member import ClusterMember
    from headrace.broker.controller.api import ControllerApi
    from headrace.broker.controller.producer_ids import ProducerIdSource
    from headrace.broker.membership import Sessions

_DEFAULT_NODE_ID = 1

OpenTree = Callable[[LogManager, World], Awaitable[Tree]]


class Broker:
    """A broker. Create it inside a running event loop; ``start`` it once, ``stop`` it once."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        world: World | None = None,
        open_tree: OpenTree | None = None,
        is_tree_shared: bool = False,
    ) -> None:
        """``open_tree`` opens the coordination tree; by default the one beside the logs.

        With ``zookeeper.connect``, or with ``is_tree_shared``, the broker joins a cluster.
        ``open_tree`` is then called again for another session if one ends.
        """
        loop = self._loop = asyncio.get_running_loop()
        self._config = config
        self.world = world or World()
        self._open_tree = open_tree or _open_embedded_tree
        self._joins_cluster = is_tree_shared or config.is_on_zookeeper
        self._is_killed = False
        self._lifecycle = Lifecycle(self._drop_clients)
        self._tasks = BackgroundTasks(loop, self.fail)
        self._bugs = Bugs()
        self._waiting = Waiting(loop, self.fail)
        self._metadata = MetadataCache(loop, self.fail)
        self._listeners = Listeners(config, self.world, loop)
        self.addresses = self._listeners.addresses  # as bound, by listener name
        self.services: Services | None = None  # while it runs
        self.dispatch: Dispatch | None = None  # while it runs

    @property
    def failure(self) -> BaseException | None:
        """The failure that stopped the broker; None after a regular stop."""
        return self._lifecycle.failure

    @property
    def bugs(self) -> deque[Exception]:
        """The latest bugs that closed a client's connection."""
        return self._bugs.met

    async def start(self) -> None:
        """Raises ConfigError or OSError if the broker cannot start; the message says what to do."""
        await self._lifecycle.start(self._start_steps)

    async def stop(self) -> None:
        """Finish the requests in progress, flush, and write a clean shutdown marker."""
        await self._lifecycle.stop()

    async def crash(self) -> None:
        """Stop like a killed process: finish, flush and mark nothing; the session may expire."""
        self._is_killed = True
        await self._lifecycle.crash()

    def fail(self, error: BaseException) -> None:
        """Stop at once, uncleanly: the next start recovers the logs."""
        self._lifecycle.fail(error)

    async def wait_stopped(self) -> None:
        await self._lifecycle.wait_stopped()

    # --- the steps of a start ------------------------------------------------

    async def _start_steps(self) -> None:
        on_stop = self._lifecycle.on_stop
        self.world.start_threads(self._loop)
        on_stop("listeners", lambda clean: self._listeners.close())
        self._listeners.bind()  # early: a port in use should be reported before a long recovery
        logs = self._new_logs()
        if self._joins_cluster:
            services = await self._start_member(logs)
        else:
            services = await self._start_alone(logs)
        on_stop("connections to brokers", lambda clean: services.transactions.disconnect())
        producing, dispatch = self._serving(services)
        on_stop("record validation", lambda clean: producing.close())
        logs.report_to(
            lambda directory: self._directory_failed(services, directory), self._worker_failed
        )
        services.groups.shards.refresh()
        services.transactions.shards.refresh()
        on_stop("moves between log directories", lambda clean: self._end_moves(services, clean))
        periodic = PeriodicTasks(services)
        periodic.start()
        on_stop("periodic tasks", lambda clean: periodic.stop())
        services.moves.resume()
        self.services, self.dispatch = services, dispatch
        self._listeners.accept(dispatch)
        on_stop("clients", lambda clean: self._end_clients(dispatch, clean))
        if services.member is not None:
            member = services.member
            on_stop("membership", lambda clean: member.leave(clean=clean))
            await member.join(self._listeners.endpoints())

    def _new_logs(self) -> LogManager:
        config = self._config
        paths = [Path(path) for path in config.list("log.dirs")]
        node_id = config.int("node.id")
        if node_id < 0:
            node_id = owner_of(self.world.files, paths) or _DEFAULT_NODE_ID
        # Topic settings are in the coordination tree, which is read next.
        plain = topic_config(config, {})
        return LogManager(
            paths,
            world=self.world,
            node_id=node_id,
            config_of=lambda topic: plain,
            producer_expiration_ms=config.int("producer.id.expiration.ms"),
            on_zookeeper=self._joins_cluster,
        )

    async def _start_alone(self, logs: LogManager) -> Services:
        """Recover the logs, take over the cluster metadata and host the replicas."""
        on_stop = self._lifecycle.on_stop
        on_stop("logs", lambda clean: self._close_logs(logs, clean))
        logs.directories.lock()
        _refuse_member(logs)
        broker_id = BrokerId(logs.directories.node_id)
        registry = Registry(await self._open_tree(logs, self.world), broker_id)
        on_stop("cluster metadata", lambda clean: registry.close())
        on_stop("background tasks", lambda clean: self._tasks.cancel_all())
        parts = self._parts(broker_id, logs, registry)
        startup = Startup(
            registry,
            broker_id=broker_id,
            endpoints=self._listeners.endpoints(),
            cluster_id=None if logs.directories.cluster_is_new else logs.directories.cluster_id,
            world=self.world,
            dynamic_config=parts.dynamic_config,
            metadata_cache=self._metadata,
            logs=logs,
            replicas=parts.replicas,
        )
        logs.open_all(self.world.now(), await startup.deleted_topics())
        changes = await startup.run(found_partitions(logs))
        logs.directories.adopt_cluster(self._metadata.current.cluster_id)
        logs.directories.losses_reported()  # there is no other replica that could lead
        controller = ControllerService(changes, parts.dynamic_config, self._metadata, self.world)
        producer_ids = ProducerIds(registry.reserve_producer_ids)
        return self._services(parts, logs, controller, producer_ids, controller.moved, None)

    async def _start_member(self, logs: LogManager) -> Services:
        """Open a session, recover the logs, and prepare to join the cluster."""
        # Imported here: one node needs none of it.
        from headrace.broker.cluster_member import ClusterMember

        on_stop = self._lifecycle.on_stop
        known_id = (
            self._config.node_id
            if self._config.node_id_is_given
            else owner_of(self.world.files, (each.path for each in logs.directories))
        )
        member = ClusterMember(
            self._sessions(logs),
            self._config,
            logs,
            known_id,
            self.world,
            self._tasks,
            self.fail,
        )
        on_stop("session", lambda clean: None if self._is_killed else member.close())
        on_stop("logs", lambda clean: self._close_logs(logs, clean))
        on_stop("background tasks", lambda clean: self._tasks.cancel_all())
        await member.open_session()
        parts = self._parts(member.broker_id, logs, member.registry)
        await member.load(parts, self._metadata)
        on_stop("replication", lambda clean: parts.replicas.stop())
        member.replicate()
        return self._services(
            parts, logs, member.controller, member.producer_ids, member.directories.moved, member
        )

    def _sessions(self, logs: LogManager) -> "Sessions":
        from headrace.broker.sessions import InProcessSessions, ZooKeeperSessions

        if self._config.is_on_zookeeper:
            log_dir = Path(self._config.list("log.dirs")[0])
            return ZooKeeperSessions(self._config, self.world.files, log_dir)
        return InProcessSessions(
            lambda: self._open_tree(logs, self.world),
            self._config.int("zookeeper.session.timeout.ms"),
        )

    def _parts(self, broker_id: BrokerId, logs: LogManager, registry: Registry) -> Parts:
        dynamic_config = DynamicConfig(registry.configs, self._config, broker_id)
        dynamic_config.on_change(lambda config: self._config_changed(config, logs))
        effects = Effects(self._waiting)
        appender = Appender(self.world, self._waiting, effects, self._tasks)
        replicas = ReplicaManager(
            self._loop,
            broker_id,
            logs,
            self._metadata,
            appender,
            self._waiting,
            dynamic_config.topic_config,
            effects=effects,
            validates_records=self._config.bool("headrace.validate.records"),
            lag_time_ms_max=self._config.int("replica.lag.time.max.ms"),
        )
        peers = Peers(
            lambda broker_id: self._metadata.current.brokers.get(broker_id),
            self._config.inter_broker_listener,
            self.world.network.dial,
        )
        return Parts(broker_id, dynamic_config, appender, replicas, peers, registry.topics)

    def _services(
        self,
        parts: Parts,
        logs: LogManager,
        controller: "ControllerApi",
        producer_ids: "ProducerIdSource",
        moved: Callable[[TopicPartition, str], Awaitable[None]],
        member: "ClusterMember | None",
    ) -> Services:
        """``moved`` records the new log directory of a partition."""
        _, dynamic_config, appender, replicas, _, topics = parts
        waiting, metadata = self._waiting, self._metadata
        host = self._coordinator_host(parts)
        groups = GroupCoordinator(host)
        markers = MarkerWriter(replicas, appender, waiting, groups, self.world)
        transactions = TransactionCoordinator(host, producer_ids, markers, topics)
        moves = LogDirMoves(self._loop, logs, replicas, dynamic_config, moved, self.fail)
        metadata.on_topics_changed(lambda deleted: waiting.serve())
        metadata.on_topics_changed(lambda deleted: moves.topics_changed())
        return Services(
            broker_id=replicas.broker_id,
            loop=self._loop,
            world=self.world,
            fail=self.fail,
            tasks=self._tasks,
            bugs=self._bugs,
            limits=self._listeners.limits,
            dynamic_config=dynamic_config,
            metadata_cache=self._metadata,
            logs=logs,
            waiting=self._waiting,
            appender=appender,
            replicas=replicas,
            controller=controller,
            producer_ids=producer_ids,
            groups=groups,
            markers=markers,
            transactions=transactions,
            moves=moves,
            fetch_sessions=FetchSessions(
                self._config.int("max.incremental.fetch.session.cache.slots"),
                lambda: draw_fetch_session_id(self.world.random),
            ),
            member=member,
        )

    def _coordinator_host(self, parts: Parts) -> Host:
        return Host(
            self._loop,
            SteadyClock(self.world.now, self._loop.time),
            parts.dynamic_config,
            self._metadata,
            parts.replicas,
            parts.appender,
            self._waiting,
            self._tasks,
            self.fail,
            parts.peers,
        )

    def _serving(self, services: Services) -> tuple[Producing, Dispatch]:
        producing = Producing(
            services.replicas,
            services.appender,
            services.waiting,
            services.transactions,
            services.tasks,
            services.bugs,
        )
        fetching = Fetching(
            services.replicas,
            services.fetch_sessions,
            services.waiting,
            services.tasks,
            services.bugs,
            services.loop,
            size_max=self._config.int("fetch.max.bytes"),
            selects_by_rack=self._config.optional_str("replica.selector.class")
            == RACK_AWARE_SELECTOR,
        )
        return producing, Dispatch(services, partial(handle, services), producing, fetching)

    # --- changes while it runs -----------------------------------------------

    def _config_changed(self, config: BrokerConfig, logs: LogManager) -> None:
        self._listeners.config_changed(config)
        logs.set_producer_expiration(config.int("producer.id.expiration.ms"))

    def _directory_failed(self, services: Services, directory: LogDirectory) -> None:
        """Also called by threads that write to the directory."""
        lost = [
            (log.topic_partition, log.topic_id)
            for log in services.logs
            if log.directory is directory
        ]
        self._loop.call_soon_threadsafe(self._partitions_failed, services, lost)

    def _worker_failed(self, bug: Exception) -> None:
        """Called by the thread that flushes and deletes; the state of its files is unknown."""
        self._loop.call_soon_threadsafe(self.fail, bug)

    def _partitions_failed(
        self, services: Services, lost: list[tuple[TopicPartition, TopicId]]
    ) -> None:
        if not self._lifecycle.is_stopping:
            services.replicas.directory_failed(topic_partition for topic_partition, _ in lost)
            self._tasks.spawn(services.controller.replicas_failed(lost))

    # --- the steps of a stop -------------------------------------------------

    async def _end_clients(self, dispatch: Dispatch, clean: bool) -> None:
        self._listeners.close()
        if clean:
            dispatch.answer_all_fetches()
        self._close_coordinators()
        if clean:
            await self._listeners.let_clients_finish(lambda: bool(len(self._tasks)))
        self._close_links()

    def _drop_clients(self) -> None:
        """Close everything at once after a failure: nothing more may be acknowledged."""
        self._listeners.close()
        self._close_coordinators()
        self._close_links()

    def _close_coordinators(self) -> None:
        if self.services is not None:
            self.services.groups.close()
            self.services.transactions.close()

    def _close_links(self) -> None:
        self._waiting.close()
        self._listeners.close_links()

    @staticmethod
    async def _end_moves(services: Services, clean: bool) -> None:
        await (services.moves.stop() if clean else services.moves.crash())

    async def _close_logs(self, logs: LogManager, clean: bool) -> None:
        if not clean or self.services is None:
            logs.abandon()
            return
        high_watermarks = {
            replica.topic_partition: replica.high_watermark
            for replica in self.services.replicas.online()
        }
        await asyncio.to_thread(logs.close_clean, high_watermarks)


def _refuse_member(logs: LogManager) -> None:
    """Refuse the logs of a cluster's broker: a standalone node would lead all its replicas."""
    for path in logs.directories.traces_of(ZOOKEEPER_SESSION):
        raise ConfigError(
            f"{path} shows that these logs belong to a broker of a cluster. Set zookeeper.connect, "
            "or start the broker with its property file. To leave the cluster for good and serve "
            f"the logs as a standalone node, remove {path.name}"
        )


async def _open_embedded_tree(logs: LogManager, world: World) -> Tree:
    return await EmbeddedTree.open(logs.directories.place_of(TREE_FILE), world.now)


def found_partitions(logs: LogManager) -> list[FoundPartition]:
    """The partitions in the log directories."""
    return [
        FoundPartition(
            log.topic_partition,
            log.topic_id,
            log.leader_epochs.latest,
            log.directory.directory_id,
        )
        for log in logs
    ]


def owner_of(files: SystemFiles, paths: Iterable[Path]) -> int | None:
    """The node id recorded in the directories, so that the settings need not repeat it."""
    for path in paths:
        values = read_properties(files, path / META_PROPERTIES)
        if values is not None:
            owner = values.get("node.id", values.get("broker.id"))
            if owner is not None and owner.isdecimal():
                return int(owner)
    return None
