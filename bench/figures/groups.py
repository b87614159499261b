"""Consumer groups: offset commits, heartbeats, joins, and loading after a restart."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench import frames, members, topics
from bench.client import Client, framed
from bench.frames import Connection, Step
from bench.members import Membership
from bench.node import Node
from bench.report import Row, ratio_at_least, ratio_at_most, value_at_most
from bench.run import Run, Samples, cpu_of
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey, response_class
from headrace.wire.schema import Message
from headrace.wire.session import parse_response

_TOPIC = "committed"
_PARTITION_COUNT = 100
_COMMIT_VERSION = 9
_HEARTBEAT_VERSION = 4
_CONSUMER_HEARTBEAT_VERSION = 1
_OFFSETS_IN_TURN = 8  # number of different commits; then the first is repeated
_QUICK_TO_GATHER = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
}


def commits(run: Run) -> list[Row]:
    """Offset commits of 100 partitions: one client, and 16 clients at once."""
    samples = Samples("commits")
    crowds = {"one client": 1, "16 clients": 16}
    seconds = run.sized(8, 1)
    with run.nodes() as nodes:
        clients = {side: _committers(node, max(crowds.values())) for side, node in nodes.items()}
        for round_number in range(run.rounds + 1):
            for label, count in crowds.items():
                for side, node in nodes.items():
                    cpu: list[float] = []
                    with cpu_of(node, cpu):
                        done = frames.run(node.address, clients[side][:count], seconds, run.scratch)
                    rate = done["answered"] / done["seconds"]
                    cost = cpu[0] / done["answered"] * 1e6
                    run.say(f"commits {side} {label}: {rate:,.0f}/s, {cost:.0f} CPU µs each")
                    if round_number:
                        samples.add(side, label, rate)
                        samples.add(side, f"{label}, CPU", cost)
    bounds = {"one client": 1.2, "16 clients": 0.8}
    rows = []
    for label in crowds:
        rows += [
            samples.row(label, "commits/s", ratio_at_least(bounds[label])),
            samples.row(f"{label}, CPU", "µs"),
        ]
    return rows


def _committers(node: Node, count: int) -> list[Connection]:
    """Members of separate groups, each the only one of its group."""
    topics.create(node.address, _TOPIC, _PARTITION_COUNT)
    members.wait_for_groups(node.address)
    made = []
    for number in range(count):
        member = _alone(node.address, f"committers-{number}")
        steps = []
        with Client(node.address) as client:
            for turn in range(_OFFSETS_IN_TURN):
                request = _commit_request(member, _TOPIC, range(_PARTITION_COUNT), turn * 1000)
                steps.append(_tried(client, ApiKey.OFFSET_COMMIT, _COMMIT_VERSION, request))
        made.append(Connection(steps))
    return made


def _alone(address: str, group_id: str) -> Membership:
    """A group of one classic member, stable."""
    _, (member,) = members.seconds_until_stable(
        address, members.classic_life, group_id=group_id, size=1, interval_ms=1000, topic=_TOPIC
    )
    return member


def _commit_request(
    member: Membership, topic: str, partitions: range, base_offset: int
) -> m.OffsetCommitRequest:
    request = m.OffsetCommitRequest
    return request(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        topics=[
            request.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=base_offset + partition,
                        committed_metadata="",
                    )
                    for partition in partitions
                ],
            )
        ],
    )


def _tried(client: Client, api_key: ApiKey, api_version: int, request: Message) -> Step:
    """A step that was answered without an error; ``frames.c`` expects this answer every time."""
    frame = framed(api_version, request)
    answer = bytes(client.exchange(frame))
    response: Any = parse_response(answer, api_key, api_version).decode(response_class(api_key))
    codes = (
        [partition.error_code for topic in response.topics for partition in topic.partitions]
        if api_key is ApiKey.OFFSET_COMMIT
        else [response.error_code]
    )
    if any(codes):
        raise ConnectionError(f"{api_key.name}: {ErrorCode(max(codes)).name}")
    return Step(frame, answer)


def heartbeats(run: Run) -> list[Row]:
    """Broker CPU for 1,000 groups of 2 members, each with a heartbeat every 3 s."""
    samples = Samples("heartbeats")
    group_count = run.sized(1000, 20)
    seconds = run.sized(15, 3)
    protocols = {"classic": members.classic_life, "new": members.consumer_life}
    # Each side gathers two thousand groups before the first measurement. No session may expire
    # until then.
    session_ms = str(members.SESSION_MS)
    settings = _QUICK_TO_GATHER | {
        "group.consumer.session.timeout.ms": session_ms,
        "group.consumer.max.session.timeout.ms": session_ms,
    }
    with run.nodes(settings) as nodes:
        crowds: dict[tuple[str, str], list[Connection]] = {}
        for side, node in nodes.items():
            topics.create(node.address, "two", 2)
            for protocol, live in protocols.items():
                crowds[side, protocol] = _pairs(node, protocol, live, group_count)
                run.say(f"heartbeats {side}: {group_count} groups of the {protocol} protocol")
        for round_number in range(run.rounds + 1):
            for protocol in protocols:
                for side, node in nodes.items():
                    cpu: list[float] = []
                    with cpu_of(node, cpu):
                        done = frames.run(
                            node.address, crowds[side, protocol], seconds, run.scratch, 3000
                        )
                    share = cpu[0] / done["seconds"] * 100
                    run.say(
                        f"heartbeats {side} {protocol}: {done['answered']} answered, "
                        f"{share:.2f} % of a core"
                    )
                    if round_number:
                        samples.add(side, f"{protocol} protocol, CPU", share)
    return [
        samples.row(f"{protocol} protocol, CPU", "% of a core", ratio_at_most(0.7))
        for protocol in protocols
    ]


def _pairs(node: Node, protocol: str, live: members.Life, group_count: int) -> list[Connection]:
    """One connection per member, which repeats its heartbeat."""
    members.wait_for_groups(node.address)

    def gather(number: int) -> list[Membership]:
        _, found = members.seconds_until_stable(
            node.address,
            live,
            group_id=f"{protocol}-{number}",
            size=2,
            interval_ms=50,
            topic="two",
        )
        return found

    with ThreadPoolExecutor(16) as pool:
        everyone = [member for pair in pool.map(gather, range(group_count)) for member in pair]
    made = []
    with Client(node.address) as client:
        for member in everyone:
            if protocol == "classic":
                request = members.heartbeat_request(member)
                step = _tried(client, ApiKey.HEARTBEAT, _HEARTBEAT_VERSION, request)
            else:
                request = members.consumer_heartbeat_request(member)
                step = _tried(
                    client, ApiKey.CONSUMER_GROUP_HEARTBEAT, _CONSUMER_HEARTBEAT_VERSION, request
                )
            made.append(Connection([step]))
    return made


def joins(run: Run) -> list[Row]:
    """100 members join one group at once, until it is stable; a heartbeat every 200 ms."""
    samples = Samples("joins")
    size = run.sized(100, 10)
    groups_per_round = run.sized(5, 1)
    protocols = {"classic": members.classic_life, "new": members.consumer_life}
    with run.nodes(_QUICK_TO_GATHER) as nodes:
        for node in nodes.values():
            topics.create(node.address, "joined", size)
            members.wait_for_groups(node.address)
        for round_number in range(run.rounds + 1):
            for protocol, live in protocols.items():
                for side, node in nodes.items():
                    for turn in range(groups_per_round):
                        cpu: list[float] = []
                        with cpu_of(node, cpu):
                            seconds, everyone = members.seconds_until_stable(
                                node.address,
                                live,
                                group_id=f"{protocol}-{round_number}-{turn}",
                                size=size,
                                interval_ms=200,
                                topic="joined",
                            )
                        members.leave(node.address, everyone, classic=protocol == "classic")
                        run.say(f"joins {side} {protocol}: {seconds:.3f} s, {cpu[0]:.2f} CPU s")
                        if round_number:
                            samples.add(side, f"{protocol} protocol", seconds)
                            samples.add(side, f"{protocol} protocol, CPU", cpu[0])
    rows = []
    for protocol in protocols:
        rows += [
            samples.row(f"{protocol} protocol", "s", ratio_at_most(1.0)),
            samples.row(f"{protocol} protocol, CPU", "s", ratio_at_most(0.7)),
        ]
    return rows


def reload(run: Run) -> list[Row]:
    """100,000 committed offsets after a restart: from process start until all are served."""
    samples = Samples("reload")
    group_count = run.sized(1000, 50)
    group_ids = [f"kept-{number}" for number in range(group_count)]
    for side in run.sides:
        node = run.node(side)
        node.start()
        topics.create(node.address, _TOPIC, _PARTITION_COUNT)
        _commit_for_all(node.address, group_ids)
        for round_number in range(run.rounds + 1):
            node.stop()
            accepts = node.start()
            served = node.seconds_since_start(_offsets_received_at(node.address, group_ids))
            run.say(f"reload {side}: accepts after {accepts:.3f} s, offsets after {served:.3f} s")
            if round_number:
                samples.add(side, "accepts → all offsets", served - accepts)
                samples.add(side, "process → all offsets", served)
        node.stop()
    return [
        samples.row("accepts → all offsets", "s"),
        samples.row("process → all offsets", "s", value_at_most(1.0)),
    ]


def _commit_for_all(address: str, group_ids: list[str]) -> None:
    members.wait_for_groups(address)
    with Client(address) as client:
        for group_id in group_ids:
            no_member = Membership(group_id, "", -1)
            request = _commit_request(no_member, _TOPIC, range(_PARTITION_COUNT), 5)
            _tried(client, ApiKey.OFFSET_COMMIT, _COMMIT_VERSION, request)


def _offsets_received_at(address: str, group_ids: list[str]) -> float:
    """When all offsets of all groups were received."""
    with Client(address) as client:
        received_at, groups = members.wait_for_offsets(client, group_ids)
        for group in groups:
            found = sum(len(topic.partitions) for topic in group.topics)
            if found != _PARTITION_COUNT:
                raise ConnectionError(f"{group.group_id} has {found} offsets")
    return received_at
