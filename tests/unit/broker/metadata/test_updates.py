"""How UpdateMetadata changes what a broker knows of its cluster."""

from headrace.broker.metadata import updates
from headrace.model.cluster_metadata import NO_LEADER, ClusterMetadata
from headrace.wire import messages as m

R = m.UpdateMetadataRequest
ORDERS, OTHER = b"o" * 16, b"p" * 16


def a_broker(broker_id):
    endpoints = [
        R.UpdateMetadataEndpoint(
            host="localhost", port=9090 + broker_id, listener="PLAINTEXT", security_protocol=0
        )
    ]
    return R.UpdateMetadataBroker(id=broker_id, endpoints=endpoints, rack=f"r{broker_id}")


def a_partition(number, leader=1, **fields):
    return R.UpdateMetadataPartitionState(
        partition_index=number, leader=leader, isr=[1, 2], replicas=[1, 2, 3], **fields
    )


def a_topic(*partitions, topic_id=ORDERS, name="orders"):
    return R.UpdateMetadataTopicState(
        topic_name=name, topic_id=topic_id, partition_states=list(partitions)
    )


def updated(metadata, *topics, brokers=(1, 2), controller_id=2):
    request = R(
        controller_id=controller_id,
        topic_states=list(topics),
        live_brokers=[a_broker(each) for each in brokers],
    )
    return updates.apply(metadata, request)


def test_every_update_replaces_the_brokers_and_the_controller():
    metadata = updated(ClusterMetadata("c"), brokers=(1, 2), controller_id=2)
    assert (metadata.cluster_id, metadata.controller_id, list(metadata.brokers)) == ("c", 2, [1, 2])
    assert metadata.brokers[1].rack == "r1"
    assert metadata.brokers[1].endpoints["PLAINTEXT"] == ("localhost", 9091, "PLAINTEXT")
    metadata = updated(metadata, brokers=(2,), controller_id=3)
    assert (metadata.controller_id, list(metadata.brokers)) == (3, [2])


def test_partitions_of_new_and_known_topics_are_taken_over():
    metadata = updated(ClusterMetadata("c"), a_topic(a_partition(0), a_partition(1)))
    changed = a_partition(1, leader=2, leader_epoch=7, zk_version=4, offline_replicas=[1])
    metadata = updated(metadata, a_topic(changed))
    first, second = metadata.topics["orders"].partitions
    assert (first.leader, second.leader) == (1, 2)
    assert (second.leader_epoch, second.partition_epoch, second.offline) == (7, 4, (1,))
    assert (second.isr, second.replicas, second.topic_id) == ((1, 2), (1, 2, 3), ORDERS)
    assert metadata.topic_by_id(ORDERS) is metadata.topics["orders"]


def test_a_topic_grows_also_if_a_later_partition_is_named_first():
    metadata = updated(ClusterMetadata("c"), a_topic(a_partition(2)))
    partitions = metadata.topics["orders"].partitions
    assert [each.leader for each in partitions] == [NO_LEADER, NO_LEADER, 1]
    metadata = updated(metadata, a_topic(a_partition(0), a_partition(1)))
    assert [each.leader for each in metadata.topics["orders"].partitions] == [1, 1, 1]


def test_a_topic_that_is_deleted_disappears():
    metadata = updated(ClusterMetadata("c"), a_topic(a_partition(0)))
    request = R(topic_states=[a_topic(a_partition(0, leader=-2))], live_brokers=[a_broker(1)])
    assert updates.removed_topics(request) == ["orders"]
    metadata = updates.apply(metadata, request)
    assert not metadata.topics and metadata.topic_by_id(ORDERS) is None


def test_a_topic_that_was_created_again_does_not_keep_old_partitions():
    metadata = updated(ClusterMetadata("c"), a_topic(a_partition(0), a_partition(1)))
    metadata = updated(metadata, a_topic(a_partition(0, leader=2), topic_id=OTHER))
    assert [each.leader for each in metadata.topics["orders"].partitions] == [2]
    assert metadata.topic_by_id(ORDERS) is None and metadata.topic_by_id(OTHER) is not None


def test_every_update_has_a_new_generation():
    metadata = updated(ClusterMetadata("c"), a_topic(a_partition(0)))
    assert updated(metadata).generation > metadata.generation
