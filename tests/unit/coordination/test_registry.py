"""The registry of several brokers: membership, elections, guarded writes, lost answers."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from headrace.coordination import paths, values
from headrace.coordination.memory import Delivery, MemorySession
from headrace.coordination.registry import BrokerIdInUse, Elected, OtherController, Registry
from headrace.coordination.tree import ANY_VERSION, SessionLost
from headrace.core.controller import (
    NEW_PARTITION,
    AddPartitions,
    ChangePartition,
    CreateTopic,
    DeleteTopic,
    MarkForDeletion,
)
from headrace.core.directory_assignment import AssignmentChange
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    Endpoint,
    TopicDirectories,
)
from headrace.model.errors import ConfigError, Fenced
from headrace.model.ids import BrokerId, LeaderEpoch, Millis, TopicId, TopicPartition
from tests.fakes.partition_states import first_state, new_topic
from tests.fakes.standin import in_loop
from tests.fakes.trees import ScriptedFaults, dump, memory_tree

NOW = Millis(1_700_000_000_000)
TOPIC_ID = TopicId(bytes(range(16)))


def an_entry(broker_id: int, port: int = 9092) -> BrokerEntry:
    endpoints = {"PLAINTEXT": Endpoint("localhost", port)}
    return BrokerEntry(BrokerId(broker_id), endpoints, None, broker_epoch=-1)


a_state = partial(first_state, "t", TOPIC_ID)
a_topic = partial(new_topic, "t", TOPIC_ID)


async def joined(session: MemorySession, broker_id: int = 1) -> Registry:
    """A registry that is ready to store anything but a controller's changes."""
    registry = Registry(session, BrokerId(broker_id))
    await registry.create_persistent_nodes()
    await registry.directories.load_assignment()
    await registry.directories.load_pending_deletions()
    return registry


async def controlling(session: MemorySession) -> Registry:
    registry = await joined(session)
    assert isinstance(await registry.take_controllership(NOW), Elected)
    return registry


# --- membership


@in_loop
async def test_brokers_that_start_together_create_the_same_nodes_and_agree_on_the_cluster_id():
    tree = memory_tree()
    registries = [
        Registry(tree.open_session(ScriptedFaults(lag=1e6)), BrokerId(n)) for n in range(3)
    ]
    await asyncio.gather(*(each.create_persistent_nodes() for each in registries))
    ids = await asyncio.gather(
        *(each.settle_cluster_id(None, f"id-{n}") for n, each in enumerate(registries))
    )
    assert ids == ["id-0"] * 3
    nodes = await dump(tree.open_session())
    assert set(paths.PERSISTENT) < set(nodes)


@in_loop
async def test_log_directories_of_another_cluster_are_refused():
    registry = await joined(memory_tree().open_session())
    assert await registry.settle_cluster_id("known", "new") == "known"
    assert await registry.settle_cluster_id(None, "new") == "known"
    with pytest.raises(ConfigError, match="another cluster"):
        await registry.settle_cluster_id("other", "new")


@in_loop
async def test_a_broker_that_registers_again_has_a_higher_epoch():
    tree = memory_tree()
    first = await (await joined(tree.open_session())).register(an_entry(1), NOW)
    with pytest.raises(BrokerIdInUse, match=r"broker.id 1 .* localhost:9092") as refused:
        await (await joined(tree.open_session())).register(an_entry(1, port=1), NOW)
    assert refused.value.holder == first
    tree.expire(refused.value.session_id)
    second = await (await joined(tree.open_session())).register(an_entry(1, port=1), NOW)
    assert second.broker_epoch > first.broker_epoch


# --- the controller


@in_loop
async def test_the_first_broker_is_elected_and_the_others_are_told_of_it():
    tree = memory_tree()
    brokers = [await joined(tree.open_session(), n) for n in range(3)]
    results = await asyncio.gather(*(each.take_controllership(NOW) for each in brokers))
    assert results == [Elected(1), OtherController(0), OtherController(0)]


@in_loop
async def test_a_broker_that_lost_the_election_is_woken_when_the_controller_goes():
    tree = memory_tree()
    await joined(first := tree.open_session(), 1)
    await Registry(first, BrokerId(1)).take_controllership(NOW)
    other = await joined(tree.open_session(), 2)
    resigned = asyncio.Event()
    result = await other.take_controllership(NOW, watch=lambda path: resigned.set())
    assert result == OtherController(1)
    tree.expire(first.session_id)
    await asyncio.wait_for(resigned.wait(), 10)
    assert await other.take_controllership(NOW) == Elected(2)


@in_loop
async def test_a_candidate_that_reads_stale_nodes_is_elected_with_the_right_epoch():
    tree = memory_tree()
    first, second = tree.open_session(), tree.open_session(ScriptedFaults(lag=1e6))
    candidate = await joined(second, 2)
    await (await joined(first, 1)).take_controllership(NOW)
    tree.expire(first.session_id)
    # It still sees no epoch at all.
    assert await second.get(paths.CONTROLLER_EPOCH) is None
    assert await candidate.take_controllership(NOW) == Elected(2)


@in_loop
async def test_a_controller_that_was_replaced_is_fenced_in_every_write():
    tree = memory_tree()
    first = tree.open_session()
    old = await joined(first, 1)
    await old.take_controllership(NOW)
    await old.load_features({})
    await old.commit([CreateTopic(a_topic(), {})])
    # A pause longer than the session; the old controller does not know of it yet.
    seat = await first.get(paths.CONTROLLER)
    assert seat is not None
    await first.delete(paths.CONTROLLER, seat.zk_version)
    new = await joined(tree.open_session(), 2)
    assert await new.take_controllership(NOW) == Elected(2)
    before = await dump(tree.open_session())
    for write in (
        lambda: old.commit([MarkForDeletion("t")]),
        lambda: old.commit([ChangePartition(a_state(leader_epoch=LeaderEpoch(1)), 0)]),
        lambda: old.commit([DeleteTopic(a_topic())], AssignmentChange({"t": None})),
        lambda: old.store_features({"f": 1}, 0),
        lambda: old.drop_delete_request("t"),
        lambda: old.drop_topic_overrides("t"),
    ):
        with pytest.raises(Fenced, match="another broker"):
            await write()
    assert await dump(tree.open_session()) == before
    await new.commit([MarkForDeletion("t")])


@in_loop
async def test_a_broker_that_was_never_elected_cannot_write_as_the_controller():
    registry = await joined(memory_tree().open_session())
    with pytest.raises(Fenced, match="not the controller"):
        await registry.commit([MarkForDeletion("t")])


@in_loop
async def test_a_controller_whose_metadata_is_no_longer_true_is_fenced():
    tree = memory_tree()
    registry = await controlling(tree.open_session())
    await registry.commit([CreateTopic(a_topic(), {})])
    await tree.open_session().set(paths.state("t", 0), b"{}", ANY_VERSION)
    with pytest.raises(Fenced, match="/brokers/topics/t/partitions/0/state"):
        await registry.commit([ChangePartition(a_state(), 0)])
    with pytest.raises(Fenced, match="/config/topics/t"):
        await registry.commit([CreateTopic(a_topic(), {})])


@in_loop
async def test_dropping_a_request_a_second_time_changes_nothing():
    session = memory_tree().open_session()
    registry = await controlling(session)
    for path in (paths.delete_topic("t"), paths.config("topics", "t")):
        await session.create(path)
    for _ in range(2):
        await registry.drop_delete_request("t")
        await registry.drop_topic_overrides("t")
        for path in (paths.delete_topic("t"), paths.config("topics", "t")):
            assert await session.get(path) is None


# --- a broker that is not the controller


@in_loop
async def test_every_broker_writes_its_directories_settings_and_producer_ids():
    tree = memory_tree()
    await controlling(tree.open_session())
    other = await joined(tree.open_session(), 2)
    change = AssignmentChange({"t": TopicDirectories(TOPIC_ID, {0: "a"})})
    await other.directories.store(change)
    await other.directories.store_paths({"a": "/data/a"})
    await other.configs.store("topics", "t", {"a": "1"})
    assert await other.reserve_producer_ids() == range(1000)
    assert (await other.directories.load_assignment()).topics == change.topics


@in_loop
async def test_no_producer_id_is_given_to_two_brokers():
    tree = memory_tree()
    brokers = [
        await joined(tree.open_session(ScriptedFaults(lag=1e6)), broker_id)
        for broker_id in range(3)
    ]
    blocks = await asyncio.gather(
        *(each.reserve_producer_ids() for each in brokers for _ in range(3))
    )
    assert sorted(ids.start for ids in blocks) == list(range(0, 9000, 1000))


# --- topics


@in_loop
async def test_topics_are_loaded_as_they_were_written():
    registry = await controlling(memory_tree().open_session())
    await registry.commit([CreateTopic(a_topic(1), {"a": "1"})])
    await registry.commit([AddPartitions(a_topic(2), (a_state(1),))])
    changed = a_state(leader_epoch=LeaderEpoch(1), partition_epoch=1)
    await registry.commit([ChangePartition(changed, 0)])
    loaded = await registry.load_topics([BrokerId(1)])
    assert loaded.topics == {"t": a_topic(2)._replace(partitions=(changed, a_state(1)))}
    assert loaded.granted_zxids[TopicPartition("t", 0)] > loaded.granted_zxids[("t", 1)]
    assert await registry.configs.load("topics") == {"t": {"a": "1"}}
    assert (await registry.load_topics([])).topics["t"].partitions[1].offline == (1,)


@in_loop
async def test_a_topic_that_a_tool_only_assigned_can_be_given_a_leader():
    tree = memory_tree()
    registry = await controlling(tree.open_session())
    await tree.open_session().create(paths.topic("t"), values.encode_topic(a_topic(2)))
    (topic,) = (await registry.load_topics([BrokerId(1)])).topics.values()
    assert [(s.leader, s.partition_epoch) for s in topic.partitions] == [
        (NO_LEADER, NEW_PARTITION)
    ] * 2
    await registry.commit([ChangePartition(a_state(p), NEW_PARTITION) for p in range(2)])
    assert (await registry.load_topics([BrokerId(1)])).topics == {"t": a_topic(2)}


# --- lost answers, in every kind of write

Prepare = Callable[[Registry, MemorySession], Awaitable[object]]
Write = Callable[[Registry], Awaitable[object]]


async def _register(registry: Registry) -> object:
    entry = await registry.register(an_entry(1), NOW)
    assert entry.broker_epoch > 0
    return entry._replace(broker_epoch=0)


async def _nothing(registry: Registry, session: MemorySession) -> None:
    pass


async def _topic(registry: Registry, session: MemorySession) -> None:
    await _create_topic(registry)


async def _create_topic(registry: Registry) -> None:
    topics = {"t": TopicDirectories(TOPIC_ID, {0: "a"})}
    await registry.commit([CreateTopic(a_topic(), {"a": "1"})], AssignmentChange(topics))


MUCH_LATER = Millis(NOW * 2)

WRITES: dict[str, tuple[Prepare, Write]] = {  # what comes before, and the write
    "cluster id": (_nothing, lambda r: r.settle_cluster_id(None, "new")),
    "registration": (_nothing, _register),
    "new topic": (_nothing, _create_topic),
    "more partitions": (
        _topic,
        lambda r: r.commit([AddPartitions(a_topic(2), (a_state(1),))]),
    ),
    "partition state": (
        _topic,
        lambda r: r.commit([ChangePartition(a_state(leader_epoch=LeaderEpoch(1)), 0)]),
    ),
    "mark for deletion": (_topic, lambda r: r.commit([MarkForDeletion("t")])),
    "mark and delete": (
        _topic,
        lambda r: r.commit(
            [MarkForDeletion("t"), DeleteTopic(a_topic())], AssignmentChange({"t": None})
        ),
    ),
    "parents of states": (
        lambda r, s: s.create(paths.topic("t"), values.encode_topic(a_topic(2))),
        lambda r: r.load_topics([BrokerId(1)]),
    ),
    "delete request": (
        lambda r, s: s.create(paths.delete_topic("t")),
        lambda r: r.drop_delete_request("t"),
    ),
    "topic settings": (_topic, lambda r: r.drop_topic_overrides("t")),
    "first features": (_nothing, lambda r: r.load_features({"f": 1})),
    "features": (lambda r, s: r.load_features({}), lambda r: r.store_features({"f": 1}, 0)),
    "producer ids": (lambda r, s: r.reserve_producer_ids(), lambda r: r.reserve_producer_ids()),
    "new settings": (_nothing, lambda r: r.configs.store("topics", "t", {"a": "1"})),
    "settings": (_topic, lambda r: r.configs.store("topics", "t", {"a": "2"})),
    "old notices": (
        lambda r, s: r.configs.store("topics", "t", {}),
        lambda r: r.configs.read_changes(MUCH_LATER),
    ),
    "directory paths": (_nothing, lambda r: r.directories.store_paths({"a": "/data"})),
    "moved replica": (
        _topic,
        lambda r: r.directories.store(
            AssignmentChange({"t": TopicDirectories(TOPIC_ID, {0: "b"})}, {TOPIC_ID: {"a"}})
        ),
    ),
}


@pytest.mark.parametrize(
    "deliveries",
    [
        [Delivery.REQUEST_LOST],
        [Delivery.ANSWER_LOST],
        [Delivery.REQUEST_LOST, Delivery.ANSWER_LOST],
    ],
    ids=["request lost", "answer lost", "request and answer lost"],
)
@pytest.mark.parametrize("name", WRITES)
@in_loop
async def test_a_lost_answer_changes_no_outcome(name, deliveries):
    prepare, write = WRITES[name]

    async def story(*deliveries: Delivery) -> tuple[object, object]:
        tree = memory_tree()
        faults = ScriptedFaults()
        session = tree.open_session(faults)
        registry = await controlling(session)
        await prepare(registry, session)
        faults.deliveries = list(deliveries)
        result = await write(registry)
        assert faults.deliveries == [], "the write met the fault"
        return result, await dump(tree.open_session())

    assert await story(*deliveries) == await story()


@pytest.mark.parametrize(
    "deliveries", [[Delivery.REQUEST_LOST], [Delivery.ANSWER_LOST]], ids=["request", "answer"]
)
@in_loop
async def test_a_lost_answer_changes_neither_the_first_nodes_nor_the_election(deliveries):
    tree = memory_tree()
    faults = ScriptedFaults(*deliveries)
    session = tree.open_session(faults)
    registry = Registry(session, BrokerId(1))
    await registry.create_persistent_nodes()
    assert faults.deliveries == []
    for controller_epoch in (1, 2):
        faults.deliveries = list(deliveries)
        assert await registry.take_controllership(NOW) == Elected(controller_epoch)
        # The epoch that it holds is the one that guards its writes.
        await registry.commit([MarkForDeletion(f"t{controller_epoch}")])
        await session.delete(paths.CONTROLLER, ANY_VERSION)


@in_loop
async def test_an_election_whose_answer_was_lost_can_be_lost_to_another_broker():
    tree = memory_tree()
    await controlling(tree.open_session())
    faults = ScriptedFaults(Delivery.ANSWER_LOST)
    other = Registry(tree.open_session(faults), BrokerId(2))
    assert await other.take_controllership(NOW) == OtherController(1)


# --- the end of the session


@pytest.mark.parametrize("name", WRITES)
@in_loop
async def test_a_session_that_ends_is_told_apart_from_a_bug(name):
    prepare, write = WRITES[name]
    tree = memory_tree()
    session = tree.open_session()
    registry = await controlling(session)
    await prepare(registry, session)
    tree.expire(session.session_id)
    with pytest.raises(SessionLost):
        await write(registry)


@in_loop
async def test_after_the_end_of_its_session_a_broker_registers_again_under_a_new_epoch():
    tree = memory_tree()
    session = tree.open_session()
    registry = await joined(session)
    first = await registry.register(an_entry(1), NOW)
    await registry.take_controllership(NOW)
    tree.expire(session.session_id)
    with pytest.raises(SessionLost):
        await registry.commit([MarkForDeletion("t")])
    again = await joined(tree.open_session())
    assert (await again.register(an_entry(1), NOW)).broker_epoch > first.broker_epoch
    assert await again.take_controllership(NOW) == Elected(2)


@in_loop
async def test_closing_gives_up_the_registration_and_the_controllership():
    tree = memory_tree()
    registry = await controlling(tree.open_session())
    await registry.register(an_entry(1), NOW)
    await registry.close()
    nodes = await dump(tree.open_session())
    assert paths.broker(BrokerId(1)) not in nodes
    assert paths.CONTROLLER not in nodes
