"""One run of the simulation: brokers and clients under the faults of a seed, then a check.

``python -m tests.sim.run SEEDS [--without N] [--bug NAME] [--events]`` runs a range of seeds such
as 1-200. For a seed with a finding it prints the faults and what was found. ``docs/simulation.md``
describes the fault model.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import multiprocessing
import random
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.client.errors import Disconnected, Refused
from headrace.coordination.tree import ANY_VERSION, NoNode
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.batch import headers
from headrace.records.record import iter_records
from headrace.wire import messages as m
from tests.history.checker import Anomaly, Kind, anomalies
from tests.history.history import Entry, History
from tests.sim.bugs import BUGS, planted
from tests.sim.clients.consumer_groups import ConsumerGroupMember
from tests.sim.clients.consumers import Consumer, read_to_end
from tests.sim.clients.groups import GroupMember
from tests.sim.clients.producers import Producer
from tests.sim.clients.session import ClientSession, refuse
from tests.sim.clients.transactions import TransactionalProducer
from tests.sim.cluster import PORT, SimulatedBroker, SimulatedCluster
from tests.sim.files import SimulatedFiles
from tests.sim.loop import Deadlock, Livelock, run_simulated
from tests.sim.plan import (
    CANCEL,
    REASSIGN,
    TREE,
    Fault,
    Times,
    draw_faults,
    draw_moves,
    draw_times,
)
from tests.sim.tree import TreeFaultRates

TOPIC = "t"
COMPACTED = "compacted"
_SHORT_LIVED = "short-lived-"
_COMPACTION = {
    "cleanup.policy": "compact",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
}
MIN_ISR = 2
REPLICATION_FACTOR = 3
_START_LIMIT_S = 60.0
_CONVERGE_LIMIT_S = 180.0
_POLL_S = 0.05
_ELECTION_S = 0.1  # more than a controller needs to elect leaders and to send them requests
_ITERATIONS_MAX = 600_000  # of the event loop; a usual run takes 60,000
_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


@dataclass
class Result:
    """What a run found. Two runs of one seed have the same digest."""

    seed: int
    faults: list[Fault] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    acknowledged_count: int = 0
    digest: str = ""


class Run:
    def __init__(
        self, seed: int, without: frozenset[int] = frozenset(), *, has_moves: bool = True
    ) -> None:
        plan_dice = random.Random(f"plan {seed}")
        self.times: Times = draw_times(plan_dice)
        self.broker_count = plan_dice.choice([3, 3, 3, 4, 5])
        broker_ids = list(range(self.broker_count))
        drawn = draw_faults(plan_dice, self.times, broker_ids)
        move_dice = random.Random(f"moves {seed}")
        if has_moves:
            drawn += draw_moves(move_dice, self.times, broker_ids, len(drawn))
        self.faults = [fault for fault in drawn if fault.number not in without]
        self.dice = random.Random(f"run {seed}")
        self.history = History()
        self.partition_count = self.dice.randint(1, 3)
        if self.dice.random() < 0.4:
            self.history.compacted_topics.add(COMPACTED)
        self._short_lived: dict[str, bool] = {}  # topics, and whether they must be gone
        rates = TreeFaultRates(
            lost=self.dice.choice([0, 0, 0.02, 0.1]),
            lag=self.dice.choice([0, 0, 0.2]),
            lag_s_max=self.times.session_timeout / 2,
        )
        self.cluster = SimulatedCluster(
            self.dice,
            self.broker_count,
            self._settings(),
            session_timeout_s=self.times.session_timeout,
            tree_rates=rates,
            releases_sessions=self.dice.random() < 0.5,
        )
        self._observer = self.cluster.ensemble.tree.open_session()
        self._may_lose_data = True  # no broker has lost data since every ISR was full
        self._finite: list[asyncio.Task[Any]] = []
        self._endless: list[Consumer | GroupMember] = []
        self._endless_tasks: list[asyncio.Task[Any]] = []

    def _settings(self) -> dict[str, str]:
        times, dice = self.times, self.dice
        return {
            "min.insync.replicas": str(MIN_ISR),
            "default.replication.factor": str(REPLICATION_FACTOR),
            "offsets.topic.replication.factor": str(REPLICATION_FACTOR),
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": str(REPLICATION_FACTOR),
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": str(MIN_ISR),
            "zookeeper.session.timeout.ms": str(int(times.session_timeout * 1000)),
            "replica.lag.time.max.ms": str(int(times.replica_lag * 1000)),
            "replica.fetch.wait.max.ms": "200",
            "replica.socket.timeout.ms": "2000",
            "replica.fetch.backoff.ms": "100",
            "controller.socket.timeout.ms": "2000",
            "replica.high.watermark.checkpoint.interval.ms": dice.choice(["500", "5000"]),
            "leader.imbalance.check.interval.seconds": dice.choice(["2", "300"]),
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "group.consumer.min.session.timeout.ms": "100",
            "group.consumer.session.timeout.ms": "2000",
            "group.consumer.min.heartbeat.interval.ms": "50",
            "group.consumer.heartbeat.interval.ms": "100",
            "group.consumer.assignment.interval.ms": "0",
            "log.cleaner.backoff.ms": "500",
            "log.roll.ms": dice.choice(["500", "604800000"]),
            "log.index.interval.bytes": "200",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }

    # --- the story

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start()
        await self._create_topic(TOPIC, self.partition_count)
        if self.history.compacted_topics:
            await self._create_topic(COMPACTED, 1, _COMPACTION)
        self._start_clients()
        self._note("faults begin")
        begins_at = cluster.loop.time()
        for fault in self.faults:
            cluster.later(begins_at + fault.at - cluster.loop.time(), self._acts(fault))
        await asyncio.sleep(self.times.duration)
        await self._end_faults()
        await self._converge()
        await self._check()
        await cluster.stop()

    def _note(self, event: str) -> None:
        self.cluster.note(event)

    async def _create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str] | None = None
    ) -> None:
        session = self.cluster.session("admin")
        kind = m.CreateTopicsRequest
        topic = kind.CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=REPLICATION_FACTOR,
            configs=[
                kind.CreatableTopicConfig(name=setting, value=value)
                for setting, value in (settings or {}).items()
            ],
        )
        request = kind(topics=[topic], timeout_ms=10_000)

        async def create() -> None:
            response = await session.ask_any(request, m.CreateTopicsResponse, 5)
            code = response.topics[0].error_code
            if code in (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NOT_CONTROLLER):
                raise Disconnected("not all brokers have arrived")
            if code != ErrorCode.TOPIC_ALREADY_EXISTS:
                refuse(code, f"CreateTopics: {response.topics[0].error_message}")

        await session.persistently(create, session.now + _START_LIMIT_S)
        await session.close()

    async def _create_and_delete(self, name: str, lasts_s: float) -> None:
        self._short_lived[name] = False
        await self._create_topic(name, 2)
        await asyncio.sleep(lasts_s)
        await self._delete_topic(name)
        self._short_lived[name] = True

    async def _delete_topic(self, name: str) -> None:
        session = self.cluster.session("admin")
        request = m.DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)

        async def delete() -> None:
            response = await session.ask_any(request, m.DeleteTopicsResponse, 5)
            code = response.responses[0].error_code
            if code == ErrorCode.NOT_CONTROLLER:
                raise Disconnected("another broker is the controller")
            # It is deleted later if a replica is out of reach, or was deleted by a try before.
            if code not in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                refuse(code, "DeleteTopics")

        await session.persistently(delete, session.now + _START_LIMIT_S)
        await session.close()

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(self.partition_count)]

    def _start_clients(self) -> None:
        dice, cluster, history, places = self.dice, self.cluster, self.history, self.places
        pause_s = dice.choice([0.05, 0.15])
        for number in range(dice.randint(2, 4)):
            producer = Producer(
                cluster.session(f"p{number}"),
                history,
                dice.choice(places),
                idempotent=dice.random() < 0.7,
            )
            self._finite.append(asyncio.ensure_future(producer.run(60, pause_s)))
        if self.history.compacted_topics:
            session = cluster.session("keyed")
            keyed = Producer(
                session, history, TopicPartition(COMPACTED, 0), idempotent=True, keys=4
            )
            self._finite.append(asyncio.ensure_future(keyed.run(40, 2 * pause_s)))
        for number in range(dice.randint(0, 2)):
            transactional = TransactionalProducer(
                cluster.session(f"tx{number}"),
                history,
                places,
                new_protocol=dice.random() < 0.6,
                timeout_s=5.0,
            )
            self._finite.append(asyncio.ensure_future(transactional.run(12, 2 * pause_s)))
        for number in range(dice.randint(1, 2)):
            place, committed_only = dice.choice(places), dice.random() < 0.5
            session = cluster.session(f"c{number}")
            self._endless.append(Consumer(session, history, place, committed_only=committed_only))
        member = dice.choice([GroupMember, ConsumerGroupMember])
        for number in range(dice.choice([0, 1, 2])):
            session = cluster.session(f"m{number}")
            self._endless.append(member(session, history, "g", places, session_timeout_s=2))
        self._endless_tasks = [
            asyncio.ensure_future(client.run(2 * pause_s)) for client in self._endless
        ]

    # --- faults

    def _acts(self, fault: Fault) -> Callable[[], Coroutine[Any, Any, None]]:
        async def act() -> None:
            self._note(f"fault {fault.number}: {fault.kind} broker {fault.broker_id}")
            await self._act(fault, self.cluster.brokers[fault.broker_id])

        return act

    async def _act(self, fault: Fault, broker: SimulatedBroker) -> None:
        network, ensemble = self.cluster.network, self.cluster.ensemble
        match fault.kind:
            case "kill":
                await broker.kill()
                self.cluster.later(fault.lasts_s, broker.start)
            case "kill in a write of":
                broker.die_writing(fault.amount, fault.lasts_s)
            case "power loss of":
                await self._lose_data(broker, fault.lasts_s)
            case "remove the logs of":
                await self._lose_data(broker, fault.lasts_s, removes_logs=True)
            case "stop":
                await broker.stop()
                self.cluster.later(fault.lasts_s, broker.start)
            case "pause":
                broker.pause()
                await asyncio.sleep(fault.lasts_s)
                broker.resume()
            case "cut between" if fault.other == TREE:
                ensemble.cut(broker.host)
                await asyncio.sleep(fault.lasts_s)
                ensemble.mend(broker.host)
            case "cut between":
                network.cut(broker.host, fault.other)
                await asyncio.sleep(fault.lasts_s)
                network.mend(broker.host, fault.other)
            case "isolate":
                others = [b.host for b in self.cluster.brokers if b is not broker]
                ensemble.cut(broker.host)
                for other in others:
                    network.cut(broker.host, other)
                await asyncio.sleep(fault.lasts_s)
                ensemble.mend(broker.host)
                for other in others:
                    network.mend(broker.host, other)
            case "delay between" if fault.other != TREE:
                network.slow(broker.host, fault.other, fault.amount * 1000)
                await asyncio.sleep(fault.lasts_s)
                network.mend(broker.host, fault.other)
            case "expire the session of":
                ensemble.expire(broker.host)
            case "reset connections of":
                network.reset_connections(broker.host)
            case "jump the clock of":
                broker.jump_clock(int(fault.amount * 1000))
            case "fill the disk of":
                broker.disk.fill()
                await asyncio.sleep(fault.lasts_s)
                broker.disk.empty()
            case "create and delete a topic beside":
                await self._create_and_delete(f"{_SHORT_LIVED}{fault.number}", fault.lasts_s)
            case "prefer":
                await self._elect_preferred(broker)
            case kind if kind == REASSIGN:
                await self._reassign(fault)
            case kind if kind == CANCEL:
                await self._cancel_reassignments()
            case "replace the controller, cut off from":
                await self._replace_controller(broker, fault.lasts_s)
            case "depose the controller, and expire the session of":
                await self._depose_controller(broker, fault.lasts_s)

    async def _controller_and(self, broker: SimulatedBroker) -> list[SimulatedBroker]:
        """The controller, ``broker`` or the next one, and the others; none without a controller."""
        node = await self._observer.get("/controller")
        if node is None:
            return []
        brokers = self.cluster.brokers
        controller = brokers[json.loads(node.value)["brokerid"]]
        in_turn = [*brokers[broker.broker_id :], *brokers[: broker.broker_id]]
        return [controller, *(each for each in in_turn if each is not controller)]

    async def _replace_controller(self, broker: SimulatedBroker, lasts_s: float) -> None:
        """What the controller tells ``broker`` last arrives after what its successor says."""
        network, ensemble = self.cluster.network, self.cluster.ensemble
        found = await self._controller_and(broker)
        if not found:
            return
        controller, broker, other, *_ = found
        network.cut(controller.host, broker.host)
        ensemble.expire(other.host)  # the controller elects, and tells
        await asyncio.sleep(_ELECTION_S)
        ensemble.expire(controller.host)
        await asyncio.sleep(lasts_s)
        network.mend(controller.host, broker.host)

    async def _depose_controller(self, broker: SimulatedBroker, hidden_s: float) -> None:
        """Delete its node, as administrators do to let the brokers elect another one.

        It hears of that late, and acts meanwhile on what it knows.
        """
        found = await self._controller_and(broker)
        if not found:
            return
        controller, broker, *_ = found
        self.cluster.ensemble.hide_changes(controller.host, hidden_s)
        with contextlib.suppress(NoNode):
            await self._observer.delete("/controller", ANY_VERSION)
        self.cluster.ensemble.expire(broker.host)
        await asyncio.sleep(_ELECTION_S)
        await self._elect_preferred(controller)

    async def _lose_data(
        self, broker: SimulatedBroker, down_s: float, *, removes_logs: bool = False
    ) -> None:
        """Lose what was not flushed, or all. Where the fault model does not allow it, a kill."""
        is_alone = removes_logs and await self._may_be_alone(broker)
        registration = await self._registration(broker)
        # A broker that is being stopped may be alone by the time that it can be killed.
        if not self._may_lose_data or is_alone or broker.is_changing:
            await broker.kill()
            self.cluster.later(down_s, broker.start)
            return
        self._note(f"{broker.host} loses {'all' if removes_logs else 'what it has not flushed'}")
        self._may_lose_data = False
        await broker.kill(power_loss=True)
        if removes_logs:
            broker.remove_logs()
        self.cluster.later(down_s, broker.start)
        await self._wait_whole(broker, registration)
        self._may_lose_data = True

    async def _wait_whole(self, broker: SimulatedBroker, registration: int) -> None:
        """Wait until the broker has come back, and into every ISR by fetching what it lost."""
        waiting: set[str] | None = None  # partitions whose ISR still counts on its lost records
        while True:
            await asyncio.sleep(_POLL_S)
            if await self._registration(broker) in (0, registration):
                continue
            states = await self._states()
            counts_on = {
                place
                for place, state in states.items()
                if broker.broker_id in state["isr"] and len(state["isr"]) > 1
            }
            waiting = counts_on if waiting is None else waiting & counts_on
            if not waiting and await self._are_isrs_full(states):
                return

    async def _are_isrs_full(self, states: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether all replicas are in sync, including replicas that a reassignment adds."""
        for topic, node in (await self._topics()).items():
            for partition, replicas in node["partitions"].items():
                state = states.get(f"{topic}-{partition}")
                if state is None or set(state["isr"]) != set(replicas):
                    return False
        return True

    async def _topics(self) -> dict[str, dict[str, Any]]:
        """The replicas of all topics, as the tree has them."""
        names = await self._observer.children("/brokers/topics") or []
        nodes = {name: await self._observer.get(f"/brokers/topics/{name}") for name in names}
        return {name: json.loads(node.value) for name, node in nodes.items() if node is not None}

    async def _states(self) -> dict[str, dict[str, Any]]:
        """The state of every partition, as the tree has it."""
        tree, found = self._observer, {}
        for topic in await tree.children("/brokers/topics") or []:
            for partition in await tree.children(f"/brokers/topics/{topic}/partitions") or []:
                path = f"/brokers/topics/{topic}/partitions/{partition}/state"
                node = await tree.get(path)
                if node is not None:
                    found[f"{topic}-{partition}"] = json.loads(node.value)
        return found

    async def _registration(self, broker: SimulatedBroker) -> int:
        """The broker epoch; 0 if it is not registered."""
        node = await self._observer.get(f"/brokers/ids/{broker.broker_id}")
        return 0 if node is None else node.created_zxid

    async def _may_be_alone(self, broker: SimulatedBroker) -> bool:
        """Whether it is the only in-sync replica of a partition, or about to be."""
        alone = [broker.broker_id]
        if any(state["isr"] == alone for state in (await self._states()).values()):
            return True
        services = None if broker.broker is None else broker.broker.services
        return services is not None and any(
            replica.require_leadership().proposal is not None
            for replica in services.replicas.leading()
        )

    async def _elect_preferred(self, broker: SimulatedBroker) -> None:
        session = self.cluster.session("elections")
        request = m.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000)
        with contextlib.suppress(Disconnected, Refused):
            await session.ask_host((broker.host, PORT), request, m.ElectLeadersResponse, 2)
        await session.close()

    async def _reassign(self, fault: Fault) -> None:
        """Move one partition of any topic, also of those of the coordinators."""
        places = sorted(await self._states())
        target = [fault.broker_id, *map(int, fault.other.split(","))]
        if places:
            topic, _, partition = places[int(fault.amount * len(places))].rpartition("-")
            await self._alter_reassignments([(topic, int(partition))], target)

    async def _cancel_reassignments(self) -> None:
        moving = [
            (topic, int(partition))
            for topic, node in (await self._topics()).items()
            for partition in {**node["adding_replicas"], **node["removing_replicas"]}
        ]
        await self._alter_reassignments(moving, None)

    async def _alter_reassignments(
        self, places: Iterable[tuple[str, int]], replicas: list[int] | None
    ) -> None:
        """Ask the controller once; it may refuse, or be gone."""
        found = await self._controller_and(self.cluster.brokers[0])
        if not found:
            return
        kind = m.AlterPartitionReassignmentsRequest
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        request = kind(
            topics=[
                kind.ReassignableTopic(
                    name=topic,
                    partitions=[
                        kind.ReassignablePartition(partition_index=each, replicas=replicas)
                        for each in partitions
                    ],
                )
                for topic, partitions in topics.items()
            ]
        )
        session = self.cluster.session("moves")
        with contextlib.suppress(Disconnected, Refused):
            await session.ask_host(
                (found[0].host, PORT), request, m.AlterPartitionReassignmentsResponse, 1
            )
        await session.close()

    async def _end_faults(self) -> None:
        cluster = self.cluster
        self._note("faults end")
        cluster.network.heal()
        cluster.ensemble.rates.are_on = False
        for broker in cluster.brokers:
            cluster.ensemble.mend(broker.host)
            broker.resume()
            broker.spare()
            broker.disk.empty()
            if broker.has_failed_disk:  # it was full at the start: its administrator has a look
                await broker.stop()
            await broker.start()

    # --- the end

    async def _converge(self) -> None:
        """All clients get through, and all replicas are in sync, on every broker's word."""
        give_up_at = self.cluster.loop.time() + _CONVERGE_LIMIT_S
        done, late = await asyncio.wait(self._finite, timeout=_CONVERGE_LIMIT_S)
        assert not late, f"{len(late)} clients do not get through after the faults"
        for task in done:
            task.result()
        session = self.cluster.session("observer")
        while problem := await self._out_of_sync(session):
            assert self.cluster.loop.time() < give_up_at, (
                f"the cluster does not converge: {problem}"
            )
            await asyncio.sleep(0.5)
        await session.close()
        await asyncio.sleep(1)
        for client in self._endless:
            client.stop()
        await asyncio.gather(*self._endless_tasks)

    async def _out_of_sync(self, session: ClientSession) -> str:
        """A replica that is not in sync, as any broker reports it; empty if there is none.

        What the brokers say must be what the tree has.
        """
        if not all(self._short_lived.values()):
            return f"topics are created and deleted: {self._short_lived}"
        stored = await self._states()
        for topic_name, node in (await self._topics()).items():
            if node["adding_replicas"] or node["removing_replicas"]:
                return f"{topic_name} is being reassigned: {node}"
        for broker in self.cluster.brokers:
            request = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
            try:
                response = await session.ask_host(
                    (broker.host, PORT), request, m.MetadataResponse, 12
                )
            except Disconnected as failed:
                return str(failed)
            if len(response.brokers) < len(self.cluster.brokers):
                return f"{broker.host} knows brokers {[b.node_id for b in response.brokers]} only"
            names = [topic.name for topic in response.topics]
            if TOPIC not in names or not self._short_lived.keys().isdisjoint(names):
                return f"{broker.host} knows topics {names}"
            left = [name for name in _partitions_on_disk(broker) if name.startswith(_SHORT_LIVED)]
            if left:
                return f"{broker.host} has {left} of deleted topics"
            for topic in response.topics:
                for partition in topic.partitions:
                    isr, replicas = partition.isr_nodes, partition.replica_nodes
                    if partition.leader_id < 0 or sorted(isr) != sorted(replicas):
                        place = f"{topic.name}-{partition.partition_index}"
                        text = f"{broker.host}: {place} has leader {partition.leader_id}"
                        return f"{text}, ISR {isr} of {replicas}"
                    if broker.broker_id not in replicas and _has_role(broker, topic, partition):
                        return f"{broker.host} has a role in {topic.name}, whose replicas it left"
                    state = stored[f"{topic.name}-{partition.partition_index}"]
                    if (state["leader"], state["leader_epoch"], sorted(state["isr"])) != (
                        partition.leader_id,
                        partition.leader_epoch,
                        sorted(isr),
                    ):
                        return f"{broker.host} says {partition}, but the tree has {state}"
        return ""

    async def _check(self) -> None:
        session = self.cluster.session("last reader")
        compacted = [TopicPartition(name, 0) for name in self.history.compacted_topics]
        for place in (*self.places, *compacted):
            for committed_only in (False, True):
                await read_to_end(session, self.history, place, committed_only=committed_only)
        await asyncio.sleep(2)  # a follower learns the last high watermark with its next fetch
        topics = await self._topics()
        for place in (*self.places, *compacted):
            end = self.history.contents[place].end
            replicas = topics[place.topic]["partitions"][str(place.partition)]
            for broker in self.cluster.brokers:
                if broker.broker_id not in replicas:
                    continue  # a broker may keep old files until its next start
                entries = _entries_on_disk(broker, place)
                if entries is not None:
                    self.history.find_replica(place, broker.broker_id, end, entries)
        await session.close()


def _has_role(
    broker: SimulatedBroker,
    topic: m.MetadataResponse.MetadataResponseTopic,
    partition: m.MetadataResponse.MetadataResponsePartition,
) -> bool:
    """Whether it leads or follows."""
    services = None if broker.broker is None else broker.broker.services
    if services is None:
        return False
    replica = services.replicas.get(topic.name or "", partition.partition_index)
    if replica is None:
        return False
    following = replica.partition.following
    return following is None or following.leader != NO_LEADER


def _partitions_on_disk(broker: SimulatedBroker) -> list[str]:
    """The directories of partitions.

    Others are about to be deleted, or set aside: a power loss may undo the start of a deletion.
    """
    names = SimulatedFiles(broker.disk).directories_in("/data")
    return [name for name in names if not name.endswith(("-delete", "-stray"))]


def _entries_on_disk(broker: SimulatedBroker, place: TopicPartition) -> list[Entry] | None:
    """The records of a replica, read from its files; None if the broker has no replica."""
    files = SimulatedFiles(broker.disk)
    directory = f"/data/{place}"
    if not files.exists(directory):
        return None
    entries = []
    for name in files.names_in(directory):
        if name.endswith(".log"):
            fd = files.open(f"{directory}/{name}", 0)
            data = files.pread(fd, files.size_of(fd), 0)
            for at, header in headers(data):
                for record in iter_records(data[at : at + header.size]):
                    value = None if header.is_control else record.value
                    entries.append(Entry(record.offset, value, header.leader_epoch, record.key))
            files.close(fd)
    return entries


def simulate(
    seed: int,
    without: frozenset[int] = frozenset(),
    *,
    bug: str | None = None,
    keeps_log: bool = False,
) -> Result:
    """Run one seed to its end, and check it. ``keeps_log`` adds the log lines to the events."""
    result = Result(seed)
    runs: list[Run] = []

    async def story() -> None:
        run = Run(seed, without, has_moves=bug is None or BUGS[bug].needs_moves)
        runs.append(run)
        result.faults, result.events = run.faults, run.cluster.events
        await run.run()

    try:
        with planted(bug), _logging(runs, keeps_log):
            dice = random.Random(f"loop {seed}")
            run_simulated(story(), dice, iterations_max=_ITERATIONS_MAX)
    except (AssertionError, Deadlock, Livelock, Disconnected, Refused) as failed:
        result.findings.append(f"{type(failed).__name__}: {failed}")
    if runs:
        run = runs[0]
        result.findings += run.cluster.failures
        if run.history.contents:
            result.findings += _summary(anomalies(run.history))
        else:
            result.findings += run.history.unexpected
        result.acknowledged_count = sum(sent.offset >= 0 for sent in run.history.sent)
        result.digest = _digest(run.history)
    return result


def _summary(found: list[Anomaly]) -> list[str]:
    """The first two of each kind, and how many more there are."""
    lines = []
    for kind in Kind:
        same = [str(anomaly) for anomaly in found if anomaly.kind is kind]
        lines += same[:2]
        if len(same) > 2:
            lines.append(f"{kind.name}: {len(same) - 2} more")
    return lines


@contextlib.contextmanager
def _logging(runs: list[Run], keeps_log: bool) -> Iterator[None]:
    """Keep the log lines of the brokers, or drop them: faults make many."""
    root = logging.getLogger("headrace")
    handler: logging.Handler = logging.NullHandler()
    if keeps_log:
        handler = _EventLog(runs)
    level, propagates = root.level, root.propagate
    root.addHandler(handler)
    root.propagate = False
    root.setLevel(logging.INFO if keeps_log else logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        root.propagate = propagates


class _EventLog(logging.Handler):
    def __init__(self, runs: list[Run]) -> None:
        super().__init__()
        self._runs = runs

    def emit(self, record: logging.LogRecord) -> None:
        for run in self._runs:
            run.cluster.note(f"{run.cluster.running_host():9} {record.getMessage()}")


def _digest(history: History) -> str:
    """Of everything that clients saw, and when they owned what."""
    digest = hashlib.sha256()
    for part in (history.sent, history.readings, history.latest, history.ownerships):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:16]


def main(arguments: Sequence[str]) -> int:
    """Run a range of seeds. The last line says how many ran and what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=main.__doc__)
    parser.add_argument("seeds", help="a range such as 1-200, or one seed")
    parser.add_argument(
        "--without", type=int, action="append", default=[], help="leave out the fault N"
    )
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant a bug, by name")
    parser.add_argument("--events", action="store_true", help="print what happened, with log lines")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--until-found", action="store_true", help="stop at the first finding")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    simulation = partial(
        simulate,
        without=frozenset(options.without),
        bug=options.bug,
        keeps_log=options.events,
    )
    ran = found = 0
    with _results(simulation, seeds, options.jobs) as results:
        for result in results:
            ran += 1
            found += bool(result.findings)
            if result.findings or options.events or len(seeds) == 1:
                _report(result, options.events)
            if result.findings and options.until_found:
                break
    print(f"{ran} seeds ran, {found} with findings")
    return min(found, 1)


@contextlib.contextmanager
def _results(
    simulation: Callable[[int], Result], seeds: Sequence[int], jobs: int
) -> Iterator[Iterable[Result]]:
    if jobs == 1:
        yield map(simulation, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap(simulation, seeds)


def _report(result: Result, with_events: bool) -> None:
    print(f"seed {result.seed}: {result.acknowledged_count} records, digest {result.digest}")
    for fault in result.faults:
        print(f"  fault {fault}")
    if with_events:
        for event in result.events:
            print(f"  {event}")
    for finding in result.findings:
        print(f"  FOUND {finding}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
