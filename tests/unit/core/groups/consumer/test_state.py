"""The records of consumer groups, compared with records that Kafka 4.3.1 wrote."""

import json
from pathlib import Path

from headrace.core.groups.consumer.members import ConsumerMember, MemberState, target_record
from headrace.core.groups.consumer.state import (
    assignment_epoch_record,
    epoch_key,
    epoch_record,
    partition_metadata_key,
)
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.ids import TopicId
from headrace.wire import messages as m
from headrace.wire.framing import decode_versioned, encode_versioned
from tests.fakes.consumers import Client, Consumers
from tests.fakes.groups import a_topic

GOLDEN = Path(__file__).parents[4] / "golden" / "consumer_group.jsonl"
GROUP, TOPIC = "modern-golden-1794788785", "orders-1794788785"
TOPIC_ID = TopicId(bytes.fromhex("54a714e6934b481c9773f1ab58aadcf7"))
CLASSIC_ID = "2KSZQh5SSWSglRRjZ_97ow"


def golden_records():
    for line in GOLDEN.read_text().splitlines():
        kept = json.loads(line)
        value = kept["value"]
        yield bytes.fromhex(kept["key"]), None if value is None else bytes.fromhex(value)


def a_shard_of_kafkas(count=None):
    groups = Consumers()
    topic = a_topic(TOPIC, 4)._replace(topic_id=TOPIC_ID)
    groups.cluster.metadata = ClusterMetadata("cluster").with_topics([topic])
    groups.log = [(*record, -1) for record in list(golden_records())[:count]]
    groups.reload()
    return groups, groups.shard.groups[GROUP]


def test_a_group_written_by_kafka_is_read_as_kafka_described_it():
    _, group = a_shard_of_kafkas()
    assert group.kind.value == "consumer" and group.state_name == "Stable"
    assert group.group_epoch == group.assignment_epoch == 6
    assert group.resolved == {f"{TOPIC}.*": frozenset({TOPIC})}
    a, s = group.members["a"], group.members["s"]
    assert set(group.members) == {"a", "s"}
    assert (a.rack_id, a.assignor, a.topics, a.pattern) == (
        "r1",
        "uniform",
        frozenset({TOPIC}),
        "",
    )
    assert (s.instance_id, s.pattern, s.topics) == ("one", f"{TOPIC}.*", frozenset())
    assert (a.client_id, a.client_host, a.rebalance_timeout_ms) == ("raw", "/127.0.0.1", 60_000)
    assert (a.member_epoch, a.previous_member_epoch, a.state) == (6, 2, MemberState.STABLE)
    assert a.assigned == {TOPIC_ID: {0: 6, 2: 6}} and s.assigned == {TOPIC_ID: {1: 6, 3: 6}}
    assert group.targets["a"] == {TOPIC_ID: frozenset({0, 2})}


def test_a_classic_member_in_a_group_written_by_kafka_is_read():
    _, group = a_shard_of_kafkas(count=8)
    member = group.members[CLASSIC_ID]
    assert member.classic.session_timeout_ms == 10_000
    ((name, metadata),) = member.classic.protocols
    assert name == "range" and TOPIC.encode() in metadata
    assert (member.topics, member.rebalance_timeout_ms) == (frozenset({TOPIC}), 20_000)


def test_a_group_is_written_as_kafka_wrote_it():
    written = dict(golden_records())
    _, group = a_shard_of_kafkas()
    for member in group.members.values():
        for key, value in (
            member.metadata_record(GROUP),
            member.assignment_record(GROUP),
            target_record(GROUP, member.member_id, group.targets[member.member_id]),
        ):
            assert written[key] == value
        assert {key for key, _ in member.tombstones(GROUP)} <= written.keys()
    key, value = epoch_record(GROUP, 6, group.metadata_hash)
    assert written[key] == value
    key, value = assignment_epoch_record(GROUP, 6, group.assigned_at)
    assert written[key] == value
    _, group = a_shard_of_kafkas(count=8)
    classic = group.members[CLASSIC_ID].metadata_record(GROUP)
    assert tuple(classic) in list(golden_records())


def test_a_group_written_by_kafka_continues():
    groups, group = a_shard_of_kafkas()
    # The hash of the topics is Kafka's own: one more target, with the same result.
    answer = groups.beat("a", 6, group=GROUP)
    assert answer.error_code == 0 and answer.member_epoch == 7
    assert groups.shard.groups[GROUP].targets["a"] == {TOPIC_ID: frozenset({0, 2})}


def test_a_member_state_from_a_newer_broker_makes_the_member_join_again():
    groups = Consumers()
    client = Client(groups, "a").join()
    member = groups.group.members["a"]
    key, value = member._replace(state=MemberState.UNKNOWN).assignment_record("g")
    opened = decode_versioned(m.ConsumerGroupCurrentMemberAssignmentValue, value)
    opened.state = 9
    groups.log.append((key, encode_versioned(opened, 0), -1))
    groups.reload()
    assert groups.group.members["a"].state is MemberState.UNKNOWN
    assert client.beat().error_code == 110  # FENCED_MEMBER_EPOCH
    # Once it has given everything up, it joins again.
    assert groups.enter("a").error_code == 0
    assert groups.group.state_name == "Stable"


def test_partitions_stored_without_epochs_get_the_members_epoch():
    value = m.ConsumerGroupCurrentMemberAssignmentValue
    kept = value(
        member_epoch=7,
        previous_member_epoch=6,
        state=0,
        assigned_partitions=[
            value.TopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2], assignment_epochs=None)
        ],
        partitions_pending_revocation=[],
    )
    member = ConsumerMember("a").with_assignment(decode_versioned(value, encode_versioned(kept, 0)))
    assert member.assigned == {TOPIC_ID: {1: 7, 2: 7}}


def test_partition_metadata_of_brokers_before_4_1_is_deleted_with_the_next_epoch():
    groups = Consumers()
    client = Client(groups, "a").join()
    old = m.ConsumerGroupPartitionMetadataValue(topics=[])
    groups.log.append((partition_metadata_key("g"), encode_versioned(old, 0), -1))
    groups.reload()
    assert groups.group.has_partition_metadata
    client.beat(topics=("orders", "other"))
    assert groups.log[-4:] and (partition_metadata_key("g"), None, -1) in groups.log
    assert not groups.group.has_partition_metadata


def test_tombstones_without_a_record_do_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    client.leave()
    groups.delete()
    gone = [entry for entry in groups.log if entry[1] is None]
    assert (epoch_key("g"), None, -1) in gone
    groups.log = gone
    groups.reload()
    assert groups.shard.groups == {}
