"""One broker: its parts wired together, its beginning and its end.

Beginning: take the addresses, open the logs, load the coordination tree, lead what is ours, and
only then accept. End (``stop``): accept nothing new, answer what is under way, flush, leave a
clean mark. A bug while records are being written ends the broker without that mark
(``fail``): what it would vouch for is no longer known. The host process lives on either way.
"""

import asyncio
import errno
import logging
import os
import random
import socket
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.broker.clock import Clock
from headrace.broker.controller.service import ControllerService, FoundPartition
from headrace.broker.coordinators.group import group_coordinator
from headrace.broker.coordinators.transaction import TransactionCoordinator
from headrace.broker.dispatch import Dispatch
from headrace.broker.handlers.fetch import ParkedFetch
from headrace.broker.handlers.produce import Produced
from headrace.broker.periodic import PeriodicTasks
from headrace.broker.replication.log_dir_moves import LogDirMoves
from headrace.broker.replication.replica_manager import Replica, ReplicaManager
from headrace.coordination.embedded import FILE_NAME as TREE_FILE
from headrace.coordination.embedded import EmbeddedTree
from headrace.core.fetch_session import FetchSessions
from headrace.core.topics import OFFSETS_TOPIC
from headrace.model.cluster_metadata import ClusterMetadata, Endpoint
from headrace.model.config import BrokerConfig, topic_config
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicId, TopicPartition
from headrace.net.buffers import BufferPool
from headrace.net.listener import ConnectionLimits, CreationRate, Listener
from headrace.net.outbox import Outbox
from headrace.net.polling import ready_counter
from headrace.storage.background import MORE_THREADS
from headrace.storage.checkpoint import META_PROPERTIES, read_properties
from headrace.storage.log_manager import LogDirectory, LogManager

_log = logging.getLogger(__name__)

_DEFAULT_NODE_ID = 1
_THREAD_COUNT = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio would take in time
_REQUEST_MEMORY_MIN = 256 << 20
_STOP_GRACE_S = 0.5
# Smaller wakes the loop too often; one that the kernel grows leaves the processor's cache, and
# then a gigabyte sent costs half as much again.
_SEND_BUFFER_SIZE = 256 << 10


class Broker:
    """A node. ``start`` it once, inside a running event loop; ``stop`` it once."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None) -> None:
        self._config = config
        self.clock = clock or Clock()
        self._metadata = ClusterMetadata("")
        self.node_id = BrokerId(-1)
        self.addresses: dict[str, tuple[str, int]] = {}  # really bound, by listener name
        self.failure: BaseException | None = None
        self.bugs: list[Exception] = []  # those that cost a client its connection
        self.loop: asyncio.AbstractEventLoop
        self.logs: LogManager
        self.replicas: ReplicaManager
        self.control: ControllerService
        self.dispatch: Dispatch
        self.groups = group_coordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.moves = LogDirMoves(self)
        self.limits = ConnectionLimits(
            config.int("max.connections"),
            config.int("max.connections.per.ip"),
            config.connection_limits_by_host(),
            CreationRate(config.int("max.connection.creation.rate")),
        )
        self.fetch_sessions = FetchSessions(
            config.int("max.incremental.fetch.session.cache.slots"),
            lambda: random.randrange(1, 1 << 31),
        )
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing: set[Replica] = set()
        self._periodic: PeriodicTasks | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._stopping = False
        self._finishing = False  # by a clean stop, whose mark a bug still prevents

    @property
    def config(self) -> BrokerConfig:
        """The settings in force; those changed while running included."""
        return self._config

    @config.setter
    def config(self, config: BrokerConfig) -> None:
        self._config = config
        self.limits.total_max = config.int("max.connections")
        self.limits.per_ip_max = config.int("max.connections.per.ip")
        self.limits.creation_rate.per_second = config.int("max.connection.creation.rate")
        self.limits.per_ip = config.connection_limits_by_host()
        for log in self.logs:
            log.producers.expiration_ms = config.int("producer.id.expiration.ms")

    # --- beginning -----------------------------------------------------------

    async def start(self) -> None:
        """Raises ConfigError or OSError, with what to do, if the broker cannot stand."""
        self.loop = asyncio.get_running_loop()
        self.dispatch = Dispatch(self)
        try:
            self._take_threads()
            self._take_addresses()
            self._lock_logs()
            # A task of its own, so that a failure elsewhere can end a start that waits.
            self._starting = self.loop.create_task(self._take_control())
            await self._starting
        except BaseException as error:
            self._starting = None
            await self._give_up()
            if self.failure is not None and isinstance(error, asyncio.CancelledError):
                raise self.failure from error
            raise
        self._starting = None
        self._periodic = PeriodicTasks(self)
        self._periodic.start()
        self.moves.resume()
        for listener in self._listeners:
            listener.accept_from_now_on(self.loop)

    def _take_threads(self) -> None:
        """All now: one that cannot be had later would stop the broker in the middle of its work."""
        executor = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="headrace")
        let_go = threading.Event()
        try:
            for _ in range(_THREAD_COUNT):
                executor.submit(let_go.wait)  # keeps its thread busy, so the next gets another
        except RuntimeError as refusal:
            executor.shutdown(wait=False)
            raise OSError(errno.EAGAIN, f"{refusal}. {MORE_THREADS}") from refusal
        finally:
            let_go.set()
        self.loop.set_default_executor(executor)

    def _take_addresses(self) -> None:
        """Bind before anything else: a taken port should cost no recovery."""
        config = self.config
        request_size_max = config.int("socket.request.max.bytes")
        memory = config.int("queued.max.request.bytes")
        if memory <= 0:
            memory = max(_REQUEST_MEMORY_MIN, 2 * request_size_max)
        pool = BufferPool(memory)
        outbox = Outbox(self.loop, ready_counter(self.loop))
        for address in config.listeners:
            listener = Listener(
                address.name,
                address.host,
                address.port,
                service=self.dispatch,
                limits=self.limits,
                pool=pool,
                outbox=outbox,
                frame_size_max=request_size_max,
                send_buffer_size=self._socket_buffer("socket.send.buffer.bytes", _SEND_BUFFER_SIZE),
                receive_buffer_size=self._socket_buffer("socket.receive.buffer.bytes", -1),
                backlog=config.int("socket.listen.backlog.size"),
                connections_max=config.limit_of_listener(address.name, "max.connections"),
                creation_rate=CreationRate(
                    config.limit_of_listener(address.name, "max.connection.creation.rate")
                ),
            )
            self._listeners.append(listener)
            self.addresses[address.name] = listener.bind()

    def _socket_buffer(self, name: str, unless_given: int) -> int | None:
        """None leaves the size to the kernel, which grows it as needed; -1 asks for that."""
        size = self.config.int(name) if self.config.given_text(name) is not None else unless_given
        return size if size > 0 else None

    def _lock_logs(self) -> None:
        config = self.config
        paths = [Path(path) for path in config.list("log.dirs")]
        node_id = config.int("node.id")
        if node_id < 0:
            node_id = owner_of(paths) or _DEFAULT_NODE_ID
        self.node_id = BrokerId(node_id)
        # Topics' own settings lie in the tree, which is read next; ``apply`` brings them.
        plain = topic_config(config, {})
        self.logs = LogManager(
            paths,
            node_id=node_id,
            config_of=lambda topic: plain,
            producer_expiration_ms=config.int("producer.id.expiration.ms"),
        )
        self.logs.lock()
        self.replicas = ReplicaManager(
            self.node_id, self.logs, self.clock, lambda topic: self.control.topic_config(topic)
        )
        self.replicas.validates_records = config.bool("headrace.validate.records")
        self.replicas.on_committed = self._committed

    async def _take_control(self) -> None:
        tree = await EmbeddedTree.open(self.logs.place_of(TREE_FILE))
        self.control = ControllerService(
            self,
            tree,
            endpoints=self._endpoints(),
            cluster_id=None if self.logs.cluster_is_new else self.logs.cluster_id,
        )
        self.logs.open_all(self.clock.now(), await self.control.deleted_topics())
        await self.control.start(
            FoundPartition(
                log.topic_partition,
                log.topic_id,
                log.leader_epochs.latest,
                log.directory.directory_id,
            )
            for log in self.logs
        )
        self.logs.adopt_cluster(self.metadata.cluster_id)
        self.logs.on_offline = self._directory_failed
        self.logs.on_bug = self._worker_failed
        self.groups.refresh()
        self.transactions.refresh()

    def _directory_failed(self, directory: LogDirectory) -> None:
        """Also called by threads that write to it."""
        lost = [
            (log.topic_partition, log.topic_id) for log in self.logs if log.directory is directory
        ]
        self.loop.call_soon_threadsafe(self._tell_control, lost)

    def _worker_failed(self, bug: Exception) -> None:
        """Called by the thread that flushes and deletes: nobody knows what it left undone."""
        self.loop.call_soon_threadsafe(self.fail, bug)

    def _tell_control(self, lost: list[tuple[TopicPartition, TopicId]]) -> None:
        if not self._stopping:
            self.spawn(self.control.replicas_failed(lost))

    def _endpoints(self) -> dict[str, Endpoint]:
        """What clients are told: each listener its own address, with the port really taken."""
        endpoints = {}
        for advertised in self.config.advertised_listeners:
            bound_host, bound_port = self.addresses[advertised.name]
            endpoints[advertised.name] = Endpoint(
                advertised.host or bound_host or socket.getfqdn(),
                advertised.port or bound_port,
                advertised.protocol,
            )
        return endpoints

    # --- what handlers ask ---------------------------------------------------

    def replica(self, topic: str, partition: int) -> Replica:
        """The hosted partition, or the error a client gets for it."""
        found = self.replicas.get(topic, partition)
        if found is None:
            raise self.unhosted(topic, partition)
        return found

    def unhosted(self, topic: str | bytes, partition: int) -> Rejected:
        """Why a partition cannot be served here."""
        if isinstance(topic, str):
            state = self.metadata.topics.get(topic)
            name = topic
        else:
            state = self.metadata.topic_by_id(TopicId(bytes(topic)))
            name = state.name if state is not None else bytes(topic).hex()
            if state is None:
                return Rejected(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {name}")
        if state is None or not 0 <= partition < len(state.partitions):
            return Rejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}"
            )
        failure = self.logs.offline_reason(state.partitions[partition].topic_partition)
        if failure is not None:
            return Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{partition} is offline: {failure}"
            )
        return Rejected(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {name}-{partition}"
        )

    @property
    def metadata(self) -> ClusterMetadata:
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: ClusterMetadata) -> None:
        before, self._metadata = self._metadata, metadata
        if before.topics is not metadata.topics:
            # Later: the replicas follow the metadata, and coordinators follow the replicas.
            self.loop.call_soon(self._topics_changed, before, metadata)

    def _topics_changed(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        if self._stopping:
            return
        gone = [
            topic.name
            for topic in before.topics.values()
            if (now := after.topics.get(topic.name)) is None or now.topic_id != topic.topic_id
        ]
        try:
            self.groups.refresh()
            self.transactions.refresh()
            if gone:
                self.moves.topics_deleted()
                self.groups.tell_all(lambda shard, now: shard.topics_deleted(gone, now))
                self.dispatch.serve_committed()
        except Exception as error:  # noqa: BLE001 - a bug while applying: the broker stops
            self.fail(error)

    def _committed(self, replica: Replica) -> None:
        self.dispatch.committed(replica)
        if replica.topic_partition.topic == OFFSETS_TOPIC:
            self.groups.committed(replica)
        self.transactions.committed(replica)

    def flush(self, replica: Replica) -> None:
        """Do what ``flush.messages`` asks for; those who wait for it are told as of a replica."""
        if replica not in self._flushing:
            self._flushing.add(replica)
            self.spawn(self._flush(replica))

    async def _flush(self, replica: Replica) -> None:
        # As often as it takes: a marker waits for its fsync without end.
        while replica.awaits_flush:
            await self.replicas.flush({replica: replica.log.log_end})
            self.dispatch.serve_committed()
        self._flushing.discard(replica)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to its end in the background; a failure there stops the broker."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)

    def _spawned_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    # --- those that wait -----------------------------------------------------

    def park_fetch(self, waiting: ParkedFetch, wait_ms: int) -> None:
        self.dispatch.park_fetch(waiting, wait_ms)

    def park_produce(self, produced: Produced) -> None:
        self.dispatch.park_produce(produced)

    def arm_timer(self, deadline: float) -> None:
        """See that somebody looks when the deadline of a parked request has come."""
        at = deadline / 1000
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        try:
            self.dispatch.deadlines_passed(self.clock.monotonic_ms())
        except Exception as error:  # noqa: BLE001 - a bug while answering: the broker stops
            self.fail(error)
        else:
            deadline = self.dispatch.next_deadline()
            if deadline is not None:
                self.arm_timer(deadline)

    # --- end -----------------------------------------------------------------

    async def wait_stopped(self) -> None:
        await self._stopped.wait()

    async def stop(self) -> None:
        """Finish what is under way, flush, leave a clean mark."""
        if self._stopping:
            await self._stopped.wait()
            return
        self._stopping = self._finishing = True
        try:
            await self._finish()
        finally:
            self._stopped.set()
        if self.failure is None:
            _log.info("stopped cleanly")

    async def _finish(self) -> None:
        for listener in self._listeners:
            listener.close()
        self.dispatch.answer_all_fetches()
        self.groups.close()
        self.transactions.close()
        await self._let_clients_finish()
        self._close_links()
        if self._periodic is not None:
            await self._periodic.stop()
        await self.moves.stop()
        await self._cancel_tasks()
        await self.dispatch.producing.close()
        await self.control.close()
        if self.failure is not None:
            self.logs.abandon()
            return
        high_watermarks = {r.topic_partition: r.high_watermark for r in self.leading()}
        await asyncio.to_thread(self.logs.close_clean, high_watermarks)

    def leading(self) -> list[Replica]:
        return [r for r in self.replicas if r.leadership is not None and r.log.offline is None]

    async def _let_clients_finish(self) -> None:
        """Answers that are made get a moment to leave; idle connections are not waited for."""
        give_up_at = self.loop.time() + _STOP_GRACE_S
        for link in self.limits.links:
            link.mute()  # what a client still sends would keep it busy for ever
        while self.loop.time() < give_up_at:
            busy = [link for link in self.limits.links if not link.idle]
            if not busy and not self._tasks:
                return
            await asyncio.sleep(0.01)

    def _close_links(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for link in list(self.limits.links):
            link.close()

    async def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give_up(self) -> None:
        """Undo a start that failed half-way; ``stop`` then has nothing left to do."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        if hasattr(self, "control"):
            await self.control.close()
        if hasattr(self, "logs"):
            self.logs.abandon()
        self._stopped.set()

    async def crash(self) -> None:
        """End as a killed process would: nothing is finished, flushed or marked."""
        if not self._stopping:
            self._stopping = True
            self._drop_clients()
            await self._end_failed()
        await self._stopped.wait()

    def fail(self, error: BaseException) -> None:
        """Stop at once and vouch for nothing: recovery at the next start decides what is there."""
        if self._stopping:
            if self._finishing and self.failure is None:
                self.failure = error  # ``_finish`` sees it before it would leave the mark
                self._tell_of_failure(error)
            return
        self._stopping = True
        self.failure = error
        if self._starting is not None:
            self._starting.cancel()  # ``start`` gives up and raises the failure
            return
        self._tell_of_failure(error)
        self._drop_clients()
        self._ending = self.loop.create_task(self._end_failed())

    @staticmethod
    def _tell_of_failure(error: BaseException) -> None:
        _log.critical(
            "the broker stops, because it cannot know what was written: %s. "
            "Start it again: it recovers its logs",
            error,
            exc_info=error,
        )

    def _drop_clients(self) -> None:
        self.groups.close()
        self.transactions.close()
        for listener in self._listeners:
            listener.close()
        self._close_links()

    async def _end_failed(self) -> None:
        try:
            if self._periodic is not None:
                await self._periodic.stop()
            await self.moves.crash()
            await self._cancel_tasks()
            await self.dispatch.producing.close()
            await self.control.close()
        except Exception:  # noqa: BLE001 - a bug stops the broker, never the host
            _log.exception("another error while the broker ends")
        finally:
            self.logs.abandon()
            self._stopped.set()


def owner_of(paths: Iterable[Path]) -> int | None:
    """The node id that folders were written by, so that it need not be repeated."""
    for path in paths:
        values = read_properties(path / META_PROPERTIES)
        if values is not None:
            owner = values.get("node.id", values.get("broker.id"))
            if owner is not None and owner.isdecimal():
                return int(owner)
    return None
