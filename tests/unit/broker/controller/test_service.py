"""The controller service of a cluster of one: its changes survive, and interrupted ones finish."""

import asyncio
import sqlite3

import pytest

from headrace.broker.controller.startup import FoundPartition
from headrace.coordination import paths, values
from headrace.coordination.config_store import NOTICE_LIFETIME_MS
from headrace.coordination.embedded import FILE_NAME, EmbeddedTree
from headrace.coordination.tree import ANY_VERSION, Create, OutcomeUnknown, Unwritable
from headrace.core.controller import CreateTopic
from headrace.core.features import METADATA_VERSION, UPGRADE, FeatureUpdate
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import TopicState
from headrace.model.errors import ConfigError, ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, LeaderEpoch, Millis, TopicId, TopicPartition
from headrace.model.settings.resources import ResourceType
from tests.fakes.standin import StillWorld, in_loop, running

AN_ID = TopicId(bytes(range(16)))


async def make(broker, name="t", count=1, **more) -> TopicState:
    (answer,) = await broker.controller.create_topics([NewTopic(name, count, **more)])
    assert isinstance(answer, CreateTopic), answer
    return answer.topic


# --- starting


@in_loop
async def test_a_first_start_creates_kafkas_tree_with_controller_epoch_one(tmp_path):
    async with running(tmp_path):
        pass
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    try:
        for path in (*paths.PERSISTENT, paths.CLUSTER_ID, paths.FEATURE_LEVELS):
            assert await tree.get(path) is not None, path
        node = await tree.get(paths.CONTROLLER_EPOCH)
        assert node is not None and node.value == b"1"
        assert await tree.get(paths.CONTROLLER) is None, (
            "the controller's term ends with its session"
        )
    finally:
        await tree.close()


@in_loop
async def test_every_start_has_a_new_controller_epoch_and_broker_epoch(tmp_path):
    async with running(tmp_path) as broker:
        first = broker.metadata.brokers[broker.broker_id]
        assert broker.changes.controller.controller_epoch == 1
        cluster_id = broker.metadata.cluster_id
    async with running(tmp_path) as broker:
        second = broker.metadata.brokers[broker.broker_id]
        assert broker.changes.controller.controller_epoch == 2
        assert second.broker_epoch > first.broker_epoch
        assert broker.metadata.cluster_id == cluster_id
        assert broker.metadata.controller_id == broker.broker_id


@in_loop
async def test_the_cluster_id_of_the_log_directories_is_used_and_another_is_refused(tmp_path):
    async with running(tmp_path, cluster_id="MkU3OEVBNTcwNTJENDM2Qk") as broker:
        assert broker.metadata.cluster_id == "MkU3OEVBNTcwNTJENDM2Qk"
    with pytest.raises(ConfigError, match="another cluster"):
        async with running(tmp_path, cluster_id="AAAAAAAAAAAAAAAAAAAAAA"):
            pass


@in_loop
async def test_topics_come_back_with_their_ids_settings_and_a_new_leader_epoch(tmp_path):
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 3, overrides={"retention.ms": "1000"})
        assert [p.leader_epoch for p in topic.partitions] == [0, 0, 0]
        assert set(broker.replicas.hosted) == {TopicPartition("t", p) for p in range(3)}
    async with running(tmp_path) as broker:
        again = broker.metadata.topics["t"]
        assert again.topic_id == topic.topic_id
        # Its log may have lost its tail, and consumers that read the tail must notice.
        assert [(p.leader_epoch, p.partition_epoch) for p in again.partitions] == [(1, 1)] * 3
        assert broker.replicas.hosted[TopicPartition("t", 2)] == again.partitions[2]
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == {"retention.ms": "1000"}
        assert broker.dynamic_config.topic_config("t").retention_ms == 1000


@in_loop
async def test_a_topic_that_a_tool_only_assigned_gets_leaders(tmp_path):
    async with running(tmp_path) as broker:
        node_id = broker.broker_id
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    value = b'{"version":1,"partitions":{"0":[%d],"1":[%d]}}' % (node_id, node_id)
    await tree.multi([Create("/config/topics/x"), Create("/brokers/topics/x", value)])
    await tree.close()
    async with running(tmp_path) as broker:
        states = broker.metadata.topics["x"].partitions
        assert [(s.leader, s.leader_epoch, s.partition_epoch) for s in states] == [
            (node_id, 0, 0)
        ] * 2
    async with running(tmp_path) as broker:
        assert broker.metadata.topics["x"].partitions[1].leader_epoch == 1


@in_loop
async def test_a_taken_broker_id_is_refused_by_name(tmp_path):
    async with running(tmp_path) as broker:
        entry = broker.metadata.brokers[broker.broker_id]
        with pytest.raises(ConfigError, match="in use"):
            await broker.changes.registry.register(entry, broker.world.now())


# --- directories and the tree disagree


def found(topic, partition, topic_id=AN_ID, last_leader_epoch=-1):
    return FoundPartition(
        TopicPartition(topic, partition), topic_id, LeaderEpoch(last_leader_epoch)
    )


@in_loop
async def test_topics_of_a_lost_tree_are_adopted_from_their_directories(tmp_path, caplog):
    directories = [
        found("t", 0, last_leader_epoch=6),
        found("t", 2),
        found("__consumer_offsets", 0, AN_ID[::-1]),
    ]
    async with running(tmp_path, found=directories) as broker:
        topic = broker.metadata.topics["t"]
        assert topic.topic_id == AN_ID
        assert [p.leader_epoch for p in topic.partitions] == [7, 0, 0]
        assert TopicPartition("t", 1) in broker.replicas.hosted
        # Without compaction, retention would delete the groups' offsets.
        config = broker.dynamic_config.topic_config("__consumer_offsets")
        assert config.cleanup_policy == {"compact"}
    assert "Found 2 partition directories of topic t, which" in caplog.text
    assert "Found 1 partition directory of topic __consumer_offsets, which" in caplog.text
    assert "check them with 'headrace configs get topic t'" in caplog.text
    async with running(tmp_path, found=directories) as broker:
        assert len(broker.metadata.topics) == 2
        assert broker.metadata.topics["t"].partitions[0].leader_epoch == 8


@in_loop
async def test_a_directory_without_a_topic_id_gets_one(tmp_path):
    async with running(tmp_path, found=[found("old", 0, NO_TOPIC_ID)]) as broker:
        assert broker.metadata.topics["old"].topic_id != NO_TOPIC_ID


@in_loop
async def test_a_directory_of_an_earlier_topic_is_deleted(tmp_path):
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 2)
    directories = [found("t", 0, topic.topic_id), found("t", 1, AN_ID)]
    async with running(tmp_path, found=directories) as broker:
        assert broker.logs.deleted == [TopicPartition("t", 1)]
        assert broker.metadata.topics["t"].topic_id == topic.topic_id


@in_loop
async def test_a_topic_id_that_all_directories_share_replaces_the_trees(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "t", 1, overrides={"retention.ms": "5"})
    async with running(tmp_path, found=[found("t", 0)]) as broker:
        assert broker.metadata.topics["t"].topic_id == AN_ID
        assert broker.logs.deleted == []
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == {"retention.ms": "5"}
    async with running(tmp_path, found=[found("t", 0)]) as broker:
        assert broker.metadata.topics["t"].topic_id == AN_ID
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == {"retention.ms": "5"}


@in_loop
async def test_directories_with_several_unknown_ids_are_left_alone(tmp_path):
    directories = [found("t", 0), found("t", 1, AN_ID[::-1])]
    async with running(tmp_path, found=directories) as broker:
        assert "t" not in broker.metadata.topics
        assert broker.logs.deleted == []


# --- topics


@in_loop
async def test_a_deleted_topic_leaves_nothing_and_its_name_gets_a_new_id(tmp_path):
    async with running(tmp_path) as broker:
        first = await make(broker, "t", 2, overrides={"retention.ms": "1"})
        await broker.controller.delete_topics(["t"])
        assert "t" not in broker.metadata.topics
        assert broker.metadata.topic_by_id(first.topic_id) is None
        assert broker.replicas.deleted == [TopicPartition("t", 0), TopicPartition("t", 1)]
        second = await make(broker, "t", 1)
        assert second.topic_id != first.topic_id
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == {}
    async with running(tmp_path) as broker:
        assert broker.metadata.topics["t"].topic_id == second.topic_id


@in_loop
async def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path):
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 1)
        broker.replicas.before_delete = (
            asyncio.Event()
        )  # never set: simulates a crash at this point
        deletion = asyncio.create_task(broker.controller.delete_topics(["t"]))
        await broker.replicas.delete_reached.wait()
        assert "t" not in broker.metadata.topics
        deletion.cancel()
        await asyncio.gather(deletion, return_exceptions=True)
    async with running(tmp_path, found=[found("t", 0, topic.topic_id)]) as broker:
        assert "t" not in broker.metadata.topics
        assert broker.logs.deleted == [TopicPartition("t", 0)]
        await make(broker, "t", 1)


@in_loop
async def test_a_request_to_delete_a_topic_that_does_not_exist_is_dropped(tmp_path):
    async with running(tmp_path):
        pass
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    await tree.create(paths.delete_topic("ghost"))
    await tree.close()
    async with running(tmp_path) as broker:
        await make(broker, "ghost")
    async with running(tmp_path) as broker:
        assert "ghost" in broker.metadata.topics


@in_loop
async def test_concurrent_requests_create_a_topic_once(tmp_path):
    async with running(tmp_path) as broker:
        answers = await asyncio.gather(
            *(broker.controller.create_topics([NewTopic("t", 1)]) for _ in range(5))
        )
        made = [answer for (answer,) in answers if isinstance(answer, CreateTopic)]
        assert len(made) == 1
        refusals = await asyncio.gather(*(broker.controller.auto_create(["u"]) for _ in range(5)))
        assert refusals == [{}] * 5


@in_loop
async def test_requests_run_while_many_topics_are_created_and_deleted(tmp_path):
    async with running(tmp_path) as broker:
        turn, turns_of = 0, {"created": set(), "deleted": set()}
        apply, delete = broker.replicas.apply, broker.replicas.delete

        async def count_turns():
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async def note_and_apply(states):
            turns_of["created"].add(turn)
            await apply(states)

        async def note_and_delete(topic_partitions):
            turns_of["deleted"].add(turn)
            await delete(topic_partitions)

        broker.replicas.apply, broker.replicas.delete = note_and_apply, note_and_delete
        counting = asyncio.ensure_future(count_turns())
        names = [f"t{number}" for number in range(100)]
        await broker.controller.create_topics([NewTopic(name, 1) for name in names])
        assert len(broker.replicas.hosted) == 100
        await broker.controller.delete_topics(names)
        assert broker.replicas.hosted == {}
        counting.cancel()
        assert {name: len(turns) >= 4 for name, turns in turns_of.items()} == {
            "created": True,
            "deleted": True,
        }


@in_loop
async def test_validate_only_changes_nothing(tmp_path):
    async with running(tmp_path) as broker:
        generation = broker.metadata.generation
        await broker.controller.create_topics([NewTopic("t", 1)], validate_only=True)
        assert broker.metadata.generation == generation
        assert broker.replicas.hosted == {}


@in_loop
async def test_internal_topics_are_created_from_the_brokers_settings(tmp_path):
    names = ["__consumer_offsets", "__transaction_state", "__share_group_state"]
    async with running(tmp_path, {"offsets.topic.num.partitions": "4"}) as broker:
        assert await broker.controller.auto_create(names) == {}
        topics = [broker.metadata.topics[name] for name in names]
        assert all(topic.internal for topic in topics)
        assert [len(topic.partitions) for topic in topics] == [4, 50, 50]
        assert [broker.dynamic_config.topic_config(name).cleanup_policy for name in names] == [
            {"compact"},
            {"compact"},
            {"delete"},
        ]
        assert broker.dynamic_config.topic_config(names[2]).retention_ms == -1


@in_loop
async def test_added_partitions_survive_a_restart(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "t", 1)
        await broker.controller.create_partitions("t", 3)
        assert len(broker.replicas.hosted) == 3
    async with running(tmp_path) as broker:
        assert len(broker.metadata.topics["t"].partitions) == 3


# --- settings


@in_loop
async def test_a_topics_own_setting_reaches_the_replicas_and_survives(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "t")
        default = broker.dynamic_config.topic_config("t")
        await broker.controller.alter_configs(ResourceType.TOPIC, "t", {"retention.ms": "77"})
        assert broker.replicas.configs["t"].retention_ms == 77
        assert broker.dynamic_config.topic_config("t") is broker.replicas.configs["t"]
    async with running(tmp_path) as broker:
        assert broker.dynamic_config.topic_config("t").retention_ms == 77
        await broker.controller.alter_configs(ResourceType.TOPIC, "t", {})
        assert broker.dynamic_config.topic_config("t") == default
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == {}
    async with running(tmp_path) as broker:
        assert broker.dynamic_config.topic_config("t") == default


@in_loop
async def test_a_brokers_setting_reaches_topics_without_one_and_survives(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "own", overrides={"retention.ms": "5"})
        await make(broker, "plain")
        mine = str(broker.broker_id)
        await broker.controller.alter_configs(ResourceType.BROKER, "", {"log.retention.ms": "10"})
        assert broker.config.int("log.retention.ms") == 10
        await broker.controller.alter_configs(ResourceType.BROKER, mine, {"log.retention.ms": "20"})
        assert broker.config.int("log.retention.ms") == 20
        assert broker.replicas.configs["plain"].retention_ms == 20
        assert broker.replicas.configs["own"].retention_ms == 5
        assert broker.dynamic_config.broker_overrides() == {"log.retention.ms": "10"}
        assert broker.dynamic_config.broker_overrides(broker.broker_id) == {
            "log.retention.ms": "20"
        }
    async with running(tmp_path) as broker:
        assert broker.config.int("log.retention.ms") == 20
        await broker.controller.alter_configs(ResourceType.BROKER, mine, {})
        assert broker.config.int("log.retention.ms") == 10


@in_loop
async def test_invalid_settings_are_refused_and_change_nothing(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "t")
        for kind, name, overrides, code in [
            (ResourceType.TOPIC, "t", {"retention.ms": "abc"}, ErrorCode.INVALID_CONFIG),
            (ResourceType.TOPIC, "t", {"nonsense": "1"}, ErrorCode.INVALID_CONFIG),
            (ResourceType.TOPIC, "gone", {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (ResourceType.BROKER, "", {"log.dirs": "/elsewhere"}, ErrorCode.INVALID_CONFIG),
            (3, "x", {}, ErrorCode.INVALID_REQUEST),
        ]:
            with pytest.raises(Rejected) as refused:
                await broker.controller.alter_configs(kind, name, overrides)
            assert refused.value.code == code
        await broker.controller.alter_configs(
            ResourceType.TOPIC, "t", {"retention.ms": "1"}, validate_only=True
        )
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == {}


@in_loop
async def test_only_the_stored_setting_that_became_invalid_is_ignored(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "t", overrides={"cleanup.policy": "compact"})
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    value = values.encode_config({"retention.ms": "much", "cleanup.policy": "compact"})
    await tree.set("/config/topics/t", value, ANY_VERSION)
    await tree.close()
    async with running(tmp_path) as broker:
        config = broker.dynamic_config.topic_config("t")
        assert config.cleanup_policy == {"compact"}
        assert config.retention_ms == broker.config.int("log.retention.ms")


@in_loop
async def test_a_group_may_have_any_name(tmp_path):
    name = "a/b%2F c"
    async with running(tmp_path) as broker:
        await broker.controller.alter_configs(
            ResourceType.GROUP, name, {"consumer.session.timeout.ms": "50000"}
        )
    async with running(tmp_path) as broker:
        assert broker.dynamic_config.names(ResourceType.GROUP) == [name]
        assert broker.dynamic_config.overrides(ResourceType.GROUP, name) == {
            "consumer.session.timeout.ms": "50000"
        }
        await broker.controller.alter_configs(ResourceType.GROUP, name, {})
        assert broker.dynamic_config.names(ResourceType.GROUP) == []


@in_loop
async def test_a_start_deletes_old_notices_and_leaves_recent_ones_to_the_other_brokers(tmp_path):
    async with running(tmp_path):
        pass
    earlier = Millis(StillWorld().now() - NOTICE_LIFETIME_MS - 1)
    tree = await EmbeddedTree.open(tmp_path, lambda: earlier)
    value = values.encode_config_change("brokers", "<default>")
    await tree.create(paths.CONFIG_CHANGE_PREFIX, value, sequential=True)
    await tree.close()
    for _ in range(2):
        async with running(tmp_path) as broker:
            await broker.controller.alter_configs(
                ResourceType.BROKER, "", {"log.retention.ms": "10"}
            )
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    assert await tree.children(paths.CONFIG_CHANGES) == [
        "config_change_0000000001",
        "config_change_0000000002",
    ]
    await tree.close()


# --- producer ids and features


@in_loop
async def test_no_producer_id_is_assigned_twice_even_after_a_restart(tmp_path):
    given = []
    for _ in range(3):
        async with running(tmp_path) as broker:
            given += await asyncio.gather(*(broker.producer_ids.next() for _ in range(1005)))
    assert len(set(given)) == len(given)
    assert min(given) == 0


@in_loop
async def test_feature_levels_that_an_earlier_version_stored_in_kafkas_node_are_moved(tmp_path):
    async with running(tmp_path):
        pass
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    await tree.delete(paths.FEATURE_LEVELS, ANY_VERSION)
    await tree.set(paths.FEATURE, values.encode_feature({METADATA_VERSION: 20}), ANY_VERSION)
    await tree.close()
    async with running(tmp_path) as broker:
        assert broker.metadata_cache.feature_levels == {METADATA_VERSION: 20}
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    node = await tree.get(paths.FEATURE)
    await tree.close()
    assert node is not None and node.value == b'{"features":{},"version":2,"status":1}'


@in_loop
async def test_feature_levels_survive_and_their_epoch_grows_with_every_change(tmp_path):
    async with running(tmp_path):
        pass
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    await tree.set(paths.FEATURE_LEVELS, values.encode_feature({METADATA_VERSION: 20}), ANY_VERSION)
    await tree.close()
    async with running(tmp_path) as broker:
        assert (
            broker.metadata_cache.feature_levels[METADATA_VERSION],
            broker.metadata_cache.features_epoch,
        ) == (
            20,
            1,
        )
        upgrade = FeatureUpdate(METADATA_VERSION, 30, UPGRADE)
        await broker.controller.update_features([upgrade], validate_only=True)
        assert broker.metadata_cache.features_epoch == 1
        await broker.controller.update_features([upgrade])
        assert broker.metadata_cache.features_epoch == 2
    async with running(tmp_path) as broker:
        assert broker.metadata_cache.feature_levels == {METADATA_VERSION: 30}


# --- failures


@in_loop
async def test_a_topic_whose_directories_cannot_be_created_is_deleted_again(tmp_path):
    async with running(tmp_path) as broker:
        broker.replicas.refused = {TopicPartition("full", 1)}
        bad, good = await broker.controller.create_topics([NewTopic("full", 3), NewTopic("ok", 1)])
        assert isinstance(bad, Rejected) and bad.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert isinstance(good, CreateTopic)
        assert set(broker.metadata.topics) == {"ok"}
        assert set(broker.replicas.hosted) == {TopicPartition("ok", 0)}
        broker.replicas.refused = set()
        await make(broker, "full", 3)


@in_loop
async def test_one_partition_that_cannot_be_served_does_not_affect_others(tmp_path):
    async with running(tmp_path) as broker:
        await make(broker, "t", 2)
        broker.replicas.refused = {TopicPartition("t", 2)}
        with pytest.raises(Rejected) as refused:
            await broker.controller.create_partitions("t", 4)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert TopicPartition("t", 3) in broker.replicas.hosted


@in_loop
async def test_a_partition_on_an_offline_disk_is_not_created_elsewhere(tmp_path):
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 2)
    here = [found("t", 0, topic.topic_id)]
    async with running(tmp_path, found=here, offline="Input/output error") as broker:
        assert set(broker.replicas.hosted) == {TopicPartition("t", 0)}
        assert len(broker.metadata.topics["t"].partitions) == 2
    async with running(tmp_path, found=here) as broker:
        assert set(broker.replicas.hosted) == {TopicPartition("t", 0), TopicPartition("t", 1)}


@in_loop
async def test_an_election_fails_if_the_elected_replica_cannot_be_created(tmp_path):
    lost = TopicPartition("t", 1)
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 2)
    here = [found("t", 0, topic.topic_id)]
    async with running(tmp_path, found=here, offline="Input/output error") as broker:
        broker.replicas.refused = {lost}
        (refusal,) = await broker.controller.elect_leaders([lost], unclean=True)
        assert refusal is not None and refusal.code == ErrorCode.KAFKA_STORAGE_ERROR


class CrashInTest(Exception):
    """Ends an operation of the broker at this point, like a kill."""


def interrupt_next_write(monkeypatch, error, *, stored):
    """Let the next write to the tree raise ``error``, after it was ``stored`` or instead."""
    write = EmbeddedTree.multi

    async def interrupted(tree, operations):
        monkeypatch.setattr(EmbeddedTree, "multi", write)
        if stored:
            await write(tree, operations)
        raise error

    monkeypatch.setattr(EmbeddedTree, "multi", interrupted)


def is_offline(broker, topic_partition):
    return (
        topic_partition in broker.logs.offline
        and topic_partition not in broker.replicas.hosted
        and broker.metadata.partition(*topic_partition).offline == (broker.broker_id,)
    )


@in_loop
async def test_a_lost_partition_stays_offline_until_the_tree_has_the_unclean_election(
    tmp_path, monkeypatch
):
    lost = TopicPartition("t", 1)
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 2)
    here = [found("t", 0, topic.topic_id)]
    async with running(tmp_path, found=here, offline="Input/output error") as broker:
        interrupt_next_write(monkeypatch, Unwritable("/"), stored=False)
        (refusal,) = await broker.controller.elect_leaders([lost], unclean=True)
        assert refusal is not None and refusal.code == ErrorCode.KAFKA_STORAGE_ERROR
        broker.changes.publish()
        assert is_offline(broker, lost)
        # The next attempt is the same election, and the tree knows of the new log directory.
        assert await broker.controller.elect_leaders([lost], unclean=True) == [None]
        assert not is_offline(broker, lost)
        assert broker.metadata.partition(*lost).leader == broker.broker_id
    async with running(tmp_path) as broker:
        recorded = broker.changes.directory_assignment.directory_of(topic.topic_id, lost)
        assert recorded == broker.logs.directories[0].directory_id


@in_loop
async def test_an_unclean_election_whose_outcome_is_unknown_is_read_back(tmp_path, monkeypatch):
    lost = TopicPartition("t", 1)
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 2)
    here = [found("t", 0, topic.topic_id)]
    for stored in (True, False):
        async with running(tmp_path, found=here, offline="Input/output error") as broker:
            epoch = broker.metadata.partition(*lost).leader_epoch
            interrupt_next_write(monkeypatch, OutcomeUnknown("/"), stored=stored)
            assert await broker.controller.elect_leaders([lost], unclean=True) == [None]
            assert broker.metadata.partition(*lost).leader_epoch == epoch + 1
            assert lost in broker.replicas.hosted and not broker.logs.offline


@pytest.mark.parametrize("stored", [False, True], ids=["before the write", "after the write"])
@in_loop
async def test_a_crash_in_an_unclean_election_is_settled_as_the_tree_says(
    tmp_path, monkeypatch, stored
):
    lost = TopicPartition("t", 1)
    async with running(tmp_path) as broker:
        topic = await make(broker, "t", 2)
        # The second partition was in a log directory that is gone.
        gone = broker.changes.directory_assignment.decide_placed(
            [topic], {lost: "a-lost-directory"}
        )
        await broker.changes.commit([], gone)
    here = [found("t", 0, topic.topic_id)]
    async with running(tmp_path, found=here) as broker:
        assert is_offline(broker, lost)
        interrupt_next_write(monkeypatch, CrashInTest(), stored=stored)
        with pytest.raises(CrashInTest):
            await broker.controller.elect_leaders([lost], unclean=True)
        assert lost not in broker.replicas.hosted
    async with running(tmp_path, found=here) as broker:
        assert is_offline(broker, lost) is not stored
        assert (lost in broker.replicas.hosted) is stored


@in_loop
async def test_a_tree_that_cannot_be_written_refuses_the_change_and_stays_consistent(
    tmp_path, monkeypatch
):
    connections = {}
    connect = sqlite3.connect

    def connect_and_keep(path, **options):
        connections[path] = connect(path, check_same_thread=False, **options)
        return connections[path]

    def limit(pages: int):
        """To SQLite a limit on the file looks like a full disk."""
        connections[tmp_path / FILE_NAME].execute(f"PRAGMA max_page_count={pages}").fetchone()

    monkeypatch.setattr(sqlite3, "connect", connect_and_keep)
    async with running(tmp_path) as broker:
        await make(broker, "before")
        limit(1)
        (refusal,) = await broker.controller.create_topics([NewTopic("after", 200)])
        assert isinstance(refusal, Rejected) and refusal.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "after" not in broker.metadata.topics
        limit(1_000_000)
        await make(broker, "after", 200)
    async with running(tmp_path) as broker:
        assert set(broker.metadata.topics) == {"before", "after"}
    assert (tmp_path / FILE_NAME).exists()
