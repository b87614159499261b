"""A cluster inside your test: ``with Cluster(brokers=3) as cluster: cluster.bootstrap_servers``.

The brokers run on threads of the test's process and share a coordination tree in memory: no Java,
ready in well under a second. ``Cluster(process=True)`` runs each broker as a child process, with a
real ZooKeeper. Every fault works in both.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from headrace.testing import cluster_state
from headrace.testing.cluster_brokers import Brokers, BrokerSlot, State
from headrace.testing.cluster_state import wait_for
from headrace.testing.environments import Environment, Processes, Threads
from headrace.testing.faults import parse_api, parse_delay, parse_error, parse_times
from headrace.testing.handle import Handle
from headrace.testing.network_faults import Impairment
from headrace.testing.settings import TEST_DEFAULTS, as_text, cluster_defaults
from headrace.testing.topics import Topics, ensure_topics, parse_topics

ZOOKEEPER = "zookeeper"


class ClusterBroker(NamedTuple):
    """One broker of a cluster, as it is now."""

    broker_id: int
    bootstrap_servers: str
    data: Path
    state: str  # running, paused or stopped


class Cluster(Handle):
    """Several brokers for one test. Their ids are 0, 1, 2 and so on.

    ``config``, ``topics`` and ``data`` are as in ``Broker``. A topic gets as many replicas as
    there are brokers, at most three.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        process: bool = False,
        config: Mapping[str, Any] | None = None,
        topics: Topics = (),
        data: str | Path | None = None,
    ) -> None:
        self._count = _parse_count(brokers)
        self._process = process
        self._settings = TEST_DEFAULTS | cluster_defaults(brokers)
        self._settings |= as_text("config", {} if config is None else config)
        self._topics = parse_topics(topics)
        self._is_temporary = data is None
        self._data = Path(data) if data is not None else None
        self._started: Brokers | None = None

    def __repr__(self) -> str:  # pytest shows it beside a failed test
        slots = self._started.slots if self._started is not None else []
        brokers = ", ".join(f"{p.broker_id} {_address(p)} {p.state.value}" for p in slots)
        return f"<headrace.testing.Cluster {brokers or 'not running'}, data in {self._data}>"

    # --- life ----------------------------------------------------------------

    def start(self) -> Self:
        if self._started is not None:
            raise RuntimeError("this cluster is already running")
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="headrace-"))
        brokers = Brokers(self._count, self._settings, self._data, self._environment(self._data))
        self._started = brokers
        try:
            brokers.environment.start()
            brokers.start(brokers.slots)
            cluster_state.wait_ready([(slot.host, slot.port) for slot in brokers.slots])
            shapes, self._topics = self._topics, {}  # created once; another start finds them
            if shapes:
                first = brokers.slots[0]
                ensure_topics(self._admin(), (first.host, first.port), shapes)
        except BaseException as error:
            # The caller has no cluster yet that it could stop.
            self.__exit__(type(error), error, None)
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers. Raises BrokerFailed if one of them failed while it ran."""
        brokers, self._started = self._started, None
        try:
            if brokers is not None:
                try:
                    # A clean end moves leaderships from broker to broker until none is left. That
                    # takes longer, warns, and helps only if the data stays.
                    brokers.end(clean=self._process or not self._is_temporary)
                finally:
                    brokers.environment.close()
        finally:
            if self._is_temporary and self._data is not None:
                shutil.rmtree(self._data, ignore_errors=True)
                self._data = None

    def _environment(self, data: Path) -> Environment:
        if self._process:
            return Processes(data / ZOOKEEPER)
        session_timeout_s = int(self._settings["zookeeper.session.timeout.ms"]) / 1000
        return Threads(data / "coordination-tree.json", session_timeout_s)

    @property
    def _brokers(self) -> Brokers:
        if self._started is None:
            raise RuntimeError("this cluster is not running; use it in a with block")
        return self._started

    # --- use -----------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for any client. They stay the same over restarts."""
        return ",".join(_address(slot) for slot in self._brokers.slots)

    def answering_servers(self) -> str:
        # A broker that is cut off the tree answers, but its metadata may be old.
        slots = [slot for slot in self._brokers.slots if self._brokers.keeps_session(slot)]
        return ",".join(map(_address, slots)) or self.bootstrap_servers

    @property
    def brokers(self) -> list[ClusterBroker]:
        """All brokers, by id."""
        return [
            ClusterBroker(slot.broker_id, _address(slot), slot.data, slot.state.value)
            for slot in self._brokers.slots
        ]

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, as all brokers tell their clients.

        Waits while there is none, and for another one while the leader is about to lose its
        session: killed, paused or cut off the tree.
        """
        read = self._brokers.environment.read

        def look() -> int | None:
            leader = self._if_it_keeps_its_session(cluster_state.leader_of(read, topic, partition))
            if leader is None:
                return None
            heard = [
                (each.host, each.port)
                for each in self._brokers.slots
                if self._brokers.keeps_session(each)
            ]
            known = cluster_state.all_know_leader(heard, topic, partition, leader)
            return leader if known else None

        return wait_for(
            look,
            lambda: (
                f"{topic}-{partition} has the leader "
                f"{cluster_state.leader_of(read, topic, partition)}"
            ),
        )

    def controller_id(self) -> int:
        """The broker that is the controller. Waits as ``leader_of`` does."""
        read = self._brokers.environment.read
        return wait_for(
            lambda: self._if_it_keeps_its_session(cluster_state.controller_id(read)),
            lambda: f"the controller is {cluster_state.controller_id(read)}",
        )

    def wait_in_sync(self, topic: str) -> None:
        """Wait until all replicas of all partitions are in sync."""
        read = self._brokers.environment.read
        wait_for(
            lambda: True if not cluster_state.out_of_sync(read, topic) else None,
            lambda: (
                f"{topic} has replicas that are not in sync, by partition: "
                f"{cluster_state.out_of_sync(read, topic)},"
            ),
        )

    def _if_it_keeps_its_session(self, broker_id: int | None) -> int | None:
        brokers = self._brokers
        if broker_id is None or not brokers.keeps_session(brokers.slot(broker_id)):
            return None
        return broker_id

    # --- faults --------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """End a broker as ``kill -9`` would. Its session expires after its timeout."""
        self._brokers.kill(self._brokers.slot(broker_id))

    def pause(self, broker_id: int) -> None:
        """Stop a broker where it is, as SIGSTOP would: also the heartbeats of its session."""
        self._brokers.pause(self._brokers.slot(broker_id))

    def resume(self, broker_id: int) -> None:
        """Let a paused broker continue."""
        self._brokers.resume(self._brokers.slot(broker_id))

    def restart(self, broker_id: int) -> None:
        """Stop a broker cleanly and start it again, or start one that was killed."""
        self._brokers.restart(self._brokers.slot(broker_id))

    def cut(self, a: int, b: int | str | None = None) -> None:
        """Cut the network between two brokers; without ``b``, between one and all others.

        Connections stall and new ones wait until ``heal``. Clients still reach both sides.
        ``cut(a, "zookeeper")`` cuts a broker off the coordination tree.
        """
        self._change_links(a, b, lambda link: link._replace(cut=True))

    def slow(self, a: int, b: int | str | None, ms: float) -> None:
        """Delay each direction between two brokers, until ``heal``."""
        seconds = parse_delay(ms)
        self._change_links(a, b, lambda link: link._replace(delay_s=seconds))

    def heal(self) -> None:
        """End all cuts and delays, and free all full disks."""
        self._brokers.heal()

    def expire_session(self, broker_id: int) -> None:
        """Expire the session of a broker, which keeps running."""
        self._brokers.environment.expire_session(self._brokers.slot(broker_id).broker_id)

    def restart_zookeeper(self) -> None:
        """Stop ZooKeeper and start it again; brokers keep their sessions if they are quick."""
        self._brokers.environment.restart_tree()

    def fill_disk(self, broker_id: int) -> None:
        """Let each write of a broker to its disk fail with ENOSPC, until ``heal``."""
        self._brokers.fill_disk(self._brokers.slot(broker_id))

    def fail(
        self,
        api: str | int,
        error: str | int,
        times: int | None = 1,
        broker_id: int | None = None,
    ) -> None:
        """Answer the next ``times`` requests of an API with an error, as ``Broker.fail``.

        Without ``broker_id``, each broker does.
        """
        api_key, code, count = parse_api(api), parse_error(error), parse_times(times)
        for slot in self._running(broker_id):
            slot.member.fail(api_key, code, count)

    def delay(self, api: str | int, ms: float, broker_id: int | None = None) -> None:
        """Handle each request of an API that many milliseconds late, as ``Broker.delay``."""
        api_key, seconds = parse_api(api), parse_delay(ms)
        for slot in self._running(broker_id):
            slot.member.delay(api_key, seconds)

    def _change_links(
        self, a: int, b: int | str | None, change: Callable[[Impairment], Impairment]
    ) -> None:
        brokers = self._brokers
        slot = brokers.slot(a)
        if b == ZOOKEEPER:
            brokers.change_tree_link(slot, change)
            return
        if isinstance(b, str) or a == b:
            raise ValueError(f"b: expected another broker, 'zookeeper' or None; got {b!r}")
        others = [brokers.slot(b)] if b is not None else brokers.slots
        for other in others:
            if other is not slot:
                brokers.change_link(slot, other, change)

    def _running(self, broker_id: int | None) -> list[BrokerSlot]:
        if broker_id is not None:
            return [self._brokers.slot(broker_id)]
        return [slot for slot in self._brokers.slots if slot.state is not State.STOPPED]


def _parse_count(brokers: Any) -> int:
    if isinstance(brokers, int) and not isinstance(brokers, bool) and brokers >= 1:
        return brokers
    raise ValueError(f"brokers: expected a number of brokers; got {brokers!r}")


def _address(slot: BrokerSlot) -> str:
    return f"[{slot.host}]:{slot.port}" if ":" in slot.host else f"{slot.host}:{slot.port}"
