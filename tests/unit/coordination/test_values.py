"""Values are those that Kafka 3.9 writes, and are read back."""

import json
from functools import partial

import pytest

from headrace.coordination import paths, values
from headrace.model.cluster_metadata import (
    BrokerEntry,
    Endpoint,
    LevelRange,
    TopicDirectories,
)
from headrace.model.errors import Corrupt
from headrace.model.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
    id_from_text,
)
from tests.fakes.partition_states import first_state, new_topic

TOPIC_ID = TopicId(id_from_text("peu1MSP5RZO423dfJShKyQ"))
a_state = partial(first_state, "tt", TOPIC_ID)
a_topic = partial(new_topic, "tt", TOPIC_ID)


# The right-hand sides were read from a cluster of Apache Kafka 3.9.1.
@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (
            values.encode_broker(
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
            values.encode_topic(a_topic()),
            b'{"partitions":{"0":[1]},"topic_id":"peu1MSP5RZO423dfJShKyQ",'
            b'"adding_replicas":{},"removing_replicas":{},"version":3}',
        ),
        (
            values.encode_state(a_state(), ControllerEpoch(1)),
            b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}',
        ),
        (
            values.encode_controller(BrokerId(1), 7),
            b'{"version":2,"brokerid":1,"timestamp":"7","kraftControllerEpoch":-1}',
        ),
        (values.encode_controller_epoch(ControllerEpoch(1)), b"1"),
        (
            values.encode_cluster_id("lyClYr35Sny7bmdDJ6tK-A"),
            b'{"version":"1","id":"lyClYr35Sny7bmdDJ6tK-A"}',
        ),
        (values.encode_config({}), b'{"version":1,"config":{}}'),
        (
            values.encode_producer_id_block(values.ProducerIdBlock(BrokerId(0), 0, 999)),
            b'{"version":1,"broker":0,"block_start":"0","block_end":"999"}',
        ),
        (values.encode_feature({}), b'{"features":{},"version":2,"status":1}'),
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
    value = values.encode_broker(entry, 0)
    assert json.loads(value)["endpoints"] == ["INSIDE://[::1]:9092", "OUTSIDE://example.org:443"]
    assert values.decode_broker(BrokerId(3), value, 77) == entry


def test_records_that_may_be_lost_are_a_key_that_kafka_ignores():
    entry = BrokerEntry(BrokerId(3), {"INSIDE": Endpoint("::1", 9092)}, None, broker_epoch=77)
    assert b"headrace" not in values.encode_broker(entry, 0)
    lossy = entry._replace(may_have_lost_records=True)
    value = values.encode_broker(lossy, 0)
    assert json.loads(value)["headrace"] == {"may_have_lost_records": True}
    assert values.decode_broker(BrokerId(3), value, 77) == lossy


def test_a_topic_is_read_back_with_its_adding_and_removing_replicas():
    moving = a_topic(2)
    first = moving.partitions[0]._replace(
        replicas=(BrokerId(1), BrokerId(2)), adding=(BrokerId(2),), removing=(BrokerId(1),)
    )
    moving = moving._replace(partitions=(first, moving.partitions[1]))
    assert values.decode_topic("tt", values.encode_topic(moving)) == values.Assignment(
        TOPIC_ID, [(1, 2), (1,)], {0: (2,)}, {0: (1,)}
    )


def test_a_topic_from_before_topic_ids_is_read():
    found = values.decode_topic("old", b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}')
    assert found == values.Assignment(None, [(1, 2), (2, 1)], {}, {})


def test_partition_states_are_read_back():
    state = a_state(leader_epoch=LeaderEpoch(5), isr=(BrokerId(1), BrokerId(2)))
    value = values.encode_state(state, ControllerEpoch(9))
    assert values.decode_state("tt", 0, value) == (1, 5, (1, 2))


def test_settings_are_read_back_and_an_empty_node_has_none():
    assert values.decode_config("/x", values.encode_config({"a": "1"})) == {"a": "1"}
    assert values.decode_config("/x", b"") == {}


@pytest.mark.parametrize(("kind", "name"), [("topics", "tt"), ("groups", "a/b%2F c")])
def test_a_config_notice_names_the_resource(kind, name):
    value = values.encode_config_change(kind, name)
    assert values.decode_config_change("/x", value) == (kind, name)


def test_notices_and_requests_to_the_controller_are_read_back():
    partitions = [TopicPartition("tt", 0), TopicPartition("u", 3)]
    assert values.decode_partitions("/x", values.encode_partitions(partitions)) == partitions
    assert values.decode_log_dir_event("/x", values.encode_log_dir_event(BrokerId(4))) == 4
    moves = {TopicPartition("tt", 0): (BrokerId(1), BrokerId(2))}
    assert values.decode_reassignment(values.encode_reassignment(moves)) == moves


def test_producer_id_blocks_features_and_the_controller_are_read_back():
    assert values.decode_producer_id_block(b"") is None
    block = values.ProducerIdBlock(BrokerId(1), 1000, 1999)
    assert values.decode_producer_id_block(values.encode_producer_id_block(block)) == block
    assert values.decode_feature(paths.FEATURE_LEVELS, values.encode_feature({"f": 2})) == {"f": 2}
    assert values.decode_controller(values.encode_controller(BrokerId(6), 0)) == 6


def test_directories_are_read_back():
    directories = TopicDirectories(TOPIC_ID, {0: "a", 1: "b", 2: "a"})
    value = values.encode_topic_directories(directories)
    assert values.decode_topic_directories("/x", value) == directories
    known = {"an-id": "/data/a"}
    assert values.decode_directories("/x", values.encode_directories(known)) == known
    assert values.decode_directories("/x", b"") == {}


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b"7", b'{"partitions":3}', b"\xff"])
def test_an_unreadable_node_is_corrupt_and_the_error_names_it(value):
    readers = [
        lambda: values.decode_broker(BrokerId(0), value, 1),
        lambda: values.decode_topic("tt", value),
        lambda: values.decode_state("tt", 0, value),
        lambda: values.decode_controller(value),
        lambda: values.decode_cluster_id(value),
        lambda: values.decode_partitions("/x", value),
        lambda: values.decode_reassignment(value),
        lambda: values.decode_feature(paths.FEATURE_LEVELS, value),
        lambda: values.decode_config_change("/x", value),
        lambda: values.decode_log_dir_event("/x", value),
    ]
    for read in readers:
        with pytest.raises(Corrupt, match="/"):
            read()


def test_a_controller_epoch_that_is_no_number_is_corrupt():
    with pytest.raises(Corrupt):
        values.decode_controller_epoch(b"one")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (values.encode_feature({"group.version": 1}), values.decode_feature),
        (values.encode_directories({"a": "/data"}), values.decode_directories),
        (
            values.encode_topic_directories(TopicDirectories(TOPIC_ID, {0: "a"})),
            values.decode_topic_directories,
        ),
    ],
)
def test_our_own_nodes_of_a_newer_version_are_refused_by_name(written, read):
    read("/headrace/mine", written)
    newer = json.dumps(json.loads(written) | {"version": 3}).encode()
    with pytest.raises(Corrupt, match="/headrace/mine .* has version 3; .* upgrade this broker"):
        read("/headrace/mine", newer)


def test_newer_versions_of_the_nodes_of_kafka_are_read():
    newer = json.dumps(json.loads(values.encode_topic(a_topic())) | {"version": 9, "more": 1})
    assert values.decode_topic("tt", newer.encode()).topic_id == TOPIC_ID
