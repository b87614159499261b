"""Paths and JSON are those of Kafka 3.9, and a change becomes one guarded multi."""

import json

import pytest

from headrace.coordination import znodes
from headrace.coordination.tree import ANY_VERSION, Check, Create, Delete, Set
from headrace.core.controller import (
    UNBORN,
    AddPartitions,
    ChangePartition,
    CreateTopic,
    DeleteTopic,
    MarkForDeletion,
)
from headrace.model.cluster_metadata import (
    BrokerEntry,
    Endpoint,
    LevelRange,
    PartitionState,
    TopicState,
)
from headrace.model.errors import Corrupt
from headrace.model.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
    ZkVersion,
    id_from_text,
)

TOPIC_ID = TopicId(id_from_text("peu1MSP5RZO423dfJShKyQ"))


def a_state(partition: int = 0, **changes: object) -> PartitionState:
    state = PartitionState(
        topic="tt",
        partition=partition,
        topic_id=TOPIC_ID,
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        isr=(BrokerId(1),),
        replicas=(BrokerId(1),),
        partition_epoch=0,
    )
    return state._replace(**changes)  # type: ignore[arg-type]


def a_topic(count: int = 1) -> TopicState:
    return TopicState("tt", TOPIC_ID, tuple(a_state(p) for p in range(count)), internal=False)


# The right-hand sides were read from a cluster of Apache Kafka 3.9.1.
@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (
            znodes.broker_value(
                BrokerEntry(
                    BrokerId(0), {"PLAINTEXT": Endpoint("127.0.0.1", 12090)}, None, broker_epoch=3
                ),
                1794775181622,
            ),
            b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
            b'"endpoints":["PLAINTEXT://127.0.0.1:12090"],"jmx_port":-1,"port":12090,'
            b'"host":"127.0.0.1","version":5,"timestamp":"1794775181622"}',
        ),
        (
            znodes.topic_value(a_topic()),
            b'{"partitions":{"0":[1]},"topic_id":"peu1MSP5RZO423dfJShKyQ",'
            b'"adding_replicas":{},"removing_replicas":{},"version":3}',
        ),
        (
            znodes.state_value(a_state(), ControllerEpoch(1)),
            b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}',
        ),
        (
            znodes.controller_value(BrokerId(1), 7),
            b'{"version":2,"brokerid":1,"timestamp":"7","kraftControllerEpoch":-1}',
        ),
        (znodes.controller_epoch_value(ControllerEpoch(1)), b"1"),
        (
            znodes.cluster_id_value("lyClYr35Sny7bmdDJ6tK-A"),
            b'{"version":"1","id":"lyClYr35Sny7bmdDJ6tK-A"}',
        ),
        (znodes.config_value({}), b'{"version":1,"config":{}}'),
        (
            znodes.producer_id_block_value(znodes.ProducerIdBlock(BrokerId(0), 0, 999)),
            b'{"version":1,"broker":0,"block_start":"0","block_end":"999"}',
        ),
        (znodes.feature_value({}), b'{"features":{},"version":2,"status":1}'),
    ],
)
def test_a_node_is_written_as_kafka_writes_it(written, seen):
    assert written == seen


def test_a_broker_is_read_back_with_every_listener_and_its_rack():
    entry = BrokerEntry(
        BrokerId(3),
        {"INSIDE": Endpoint("::1", 9092), "OUTSIDE": Endpoint("example.org", 443, "SSL")},
        "here",
        broker_epoch=77,
        features={"transaction.version": LevelRange(0, 2)},
    )
    value = znodes.broker_value(entry, 0)
    assert json.loads(value)["endpoints"] == ["INSIDE://[::1]:9092", "OUTSIDE://example.org:443"]
    assert znodes.read_broker(BrokerId(3), value, 77) == entry


def test_a_topic_is_read_back_with_what_comes_and_goes():
    moving = a_topic(2)
    first = moving.partitions[0]._replace(
        replicas=(BrokerId(1), BrokerId(2)), adding=(BrokerId(2),), removing=(BrokerId(1),)
    )
    moving = moving._replace(partitions=(first, moving.partitions[1]))
    assert znodes.read_topic("tt", znodes.topic_value(moving)) == znodes.Assignment(
        TOPIC_ID, [(1, 2), (1,)], {0: (2,)}, {0: (1,)}
    )


def test_a_topic_from_before_topic_ids_is_read():
    found = znodes.read_topic("old", b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}')
    assert found == znodes.Assignment(None, [(1, 2), (2, 1)], {}, {})


def test_states_settings_and_notices_are_read_back():
    state = a_state(leader_epoch=LeaderEpoch(5), isr=(BrokerId(1), BrokerId(2)))
    assert znodes.read_state("tt", 0, znodes.state_value(state, ControllerEpoch(9))) == (
        1,
        5,
        (1, 2),
    )
    assert znodes.read_config("/x", znodes.config_value({"a": "1"})) == {"a": "1"}
    assert znodes.read_config("/x", b"") == {}
    notice = znodes.config_change("topics", "tt")
    assert notice.sequential
    assert znodes.read_config_change(notice.path, notice.value) == ("topics", "tt")
    wanted = [TopicPartition("tt", 0), TopicPartition("u", 3)]
    changed = znodes.isr_change(wanted)
    assert znodes.read_partitions(changed.path, changed.value) == wanted
    assert znodes.read_partitions("/x", znodes.preferred_election_value(wanted)) == wanted
    event = znodes.log_dir_event(BrokerId(4))
    assert znodes.read_log_dir_event(event.path, event.value) == 4
    moves = {TopicPartition("tt", 0): (BrokerId(1), BrokerId(2))}
    assert znodes.read_reassignment(znodes.reassignment_value(moves)) == moves
    assert znodes.read_producer_id_block(b"") is None
    block = znodes.ProducerIdBlock(BrokerId(1), 1000, 1999)
    assert znodes.read_producer_id_block(znodes.producer_id_block_value(block)) == block
    assert znodes.read_feature(znodes.feature_value({"f": 2})) == {"f": 2}
    assert znodes.read_controller(znodes.controller_value(BrokerId(6), 0)) == 6


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b"7", b'{"partitions":3}', b"\xff"])
def test_a_node_that_makes_no_sense_is_corrupt_and_says_which(value):
    readers = [
        lambda: znodes.read_broker(BrokerId(0), value, 1),
        lambda: znodes.read_topic("tt", value),
        lambda: znodes.read_state("tt", 0, value),
        lambda: znodes.read_controller(value),
        lambda: znodes.read_cluster_id(value),
        lambda: znodes.read_partitions("/x", value),
        lambda: znodes.read_reassignment(value),
        lambda: znodes.read_feature(value),
        lambda: znodes.read_config_change("/x", value),
        lambda: znodes.read_log_dir_event("/x", value),
    ]
    for read in readers:
        with pytest.raises(Corrupt, match="/"):
            read()


def test_a_controller_epoch_that_is_no_number_is_corrupt():
    with pytest.raises(Corrupt):
        znodes.read_controller_epoch(b"one")


def operations(*changes):
    return znodes.operations(changes, ControllerEpoch(4), ZkVersion(3))


def test_every_change_is_guarded_by_the_controller_epoch():
    assert operations(MarkForDeletion("tt")) == [
        Check("/controller_epoch", ZkVersion(3)),
        Create("/admin/delete_topics/tt"),
    ]


def test_a_topic_is_made_with_its_settings_and_states_in_one_go():
    made = operations(CreateTopic(a_topic(2), {"a": "1"}))[1:]
    assert [operation.path for operation in made] == [
        "/config/topics/tt",
        "/brokers/topics/tt",
        "/brokers/topics/tt/partitions",
        "/brokers/topics/tt/partitions/0",
        "/brokers/topics/tt/partitions/0/state",
        "/brokers/topics/tt/partitions/1",
        "/brokers/topics/tt/partitions/1/state",
    ]
    assert all(isinstance(operation, Create) for operation in made)


def test_partitions_are_added_beside_the_ones_there():
    grown = a_topic(2)
    assert operations(AddPartitions(grown, grown.partitions[1:]))[1:] == [
        Set("/brokers/topics/tt", znodes.topic_value(grown), ANY_VERSION),
        Create("/brokers/topics/tt/partitions/1"),
        Create(
            "/brokers/topics/tt/partitions/1/state",
            znodes.state_value(grown.partitions[1], ControllerEpoch(4)),
        ),
    ]


def test_a_state_is_replaced_only_if_it_is_still_the_one_that_was_judged():
    state = a_state(partition_epoch=8)
    value = znodes.state_value(state, ControllerEpoch(4))
    path = "/brokers/topics/tt/partitions/0/state"
    assert operations(ChangePartition(state, 7))[1:] == [Set(path, value, ZkVersion(7))]
    assert operations(ChangePartition(state, UNBORN))[1:] == [Create(path, value)]


def test_a_deleted_topic_leaves_nothing_and_the_wish_goes_last():
    gone = operations(DeleteTopic(a_topic(1)))[1:]
    assert gone == [
        Delete(path, ANY_VERSION)
        for path in (
            "/brokers/topics/tt/partitions/0/state",
            "/brokers/topics/tt/partitions/0",
            "/brokers/topics/tt/partitions",
            "/brokers/topics/tt",
            "/config/topics/tt",
            "/admin/delete_topics/tt",
        )
    ]
