"""Every change of the controller becomes operations on the tree."""

from functools import partial

from headrace.coordination import controller_writes, values
from headrace.coordination.tree import ANY_VERSION, Create, Delete, Set
from headrace.core.controller import (
    NEW_PARTITION,
    AddPartitions,
    ChangePartition,
    CreateTopic,
    DeleteTopic,
    MarkForDeletion,
)
from headrace.model.ids import ControllerEpoch, TopicId, ZkVersion
from tests.fakes.partition_states import first_state, new_topic

TOPIC_ID = TopicId(bytes(range(16)))
a_state = partial(first_state, "tt", TOPIC_ID)
a_topic = partial(new_topic, "tt", TOPIC_ID)


def operations(*changes):
    return controller_writes.operations(changes, ControllerEpoch(4))


def test_a_topic_is_marked_for_deletion_by_kafkas_request():
    assert operations(MarkForDeletion("tt")) == [Create("/admin/delete_topics/tt")]


def test_a_topic_is_created_with_its_settings_and_states_in_one_write():
    made = operations(CreateTopic(a_topic(2), {"a": "1"}))
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


def test_partitions_are_added_beside_the_existing_ones():
    grown = a_topic(2)
    assert operations(AddPartitions(grown, grown.partitions[1:])) == [
        Set("/brokers/topics/tt", values.encode_topic(grown), ANY_VERSION),
        Create("/brokers/topics/tt/partitions/1"),
        Create(
            "/brokers/topics/tt/partitions/1/state",
            values.encode_state(grown.partitions[1], ControllerEpoch(4)),
        ),
    ]


def test_a_state_is_replaced_only_if_it_has_not_changed_since_the_decision():
    state = a_state(partition_epoch=8)
    value = values.encode_state(state, ControllerEpoch(4))
    path = "/brokers/topics/tt/partitions/0/state"
    assert operations(ChangePartition(state, 7)) == [Set(path, value, ZkVersion(7))]
    assert operations(ChangePartition(state, NEW_PARTITION)) == [Create(path, value)]


def test_a_deleted_topic_leaves_nothing_and_the_request_goes_last():
    gone = operations(DeleteTopic(a_topic(1)))
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
