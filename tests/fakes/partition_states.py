"""States of partitions: as a controller decides them, and as the tree stores them."""

from typing import Any

from headrace.model.cluster_metadata import PartitionState, TopicState
from headrace.model.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId


def a_state(
    leader=1,
    leader_epoch=3,
    isr=(1, 2),
    replicas=(1, 2, 3),
    partition_epoch=7,
):
    return PartitionState(
        "t", 0, NO_TOPIC_ID, leader, leader_epoch, tuple(isr), tuple(replicas), partition_epoch
    )


def first_state(
    topic: str, topic_id: TopicId, partition: int = 0, **changes: Any
) -> PartitionState:
    """A new partition that broker 1 alone has."""
    state = PartitionState(
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        isr=(BrokerId(1),),
        replicas=(BrokerId(1),),
        partition_epoch=0,
    )
    return state._replace(**changes)


def new_topic(topic: str, topic_id: TopicId, count: int = 1) -> TopicState:
    """A new topic that broker 1 alone has."""
    states = tuple(first_state(topic, topic_id, number) for number in range(count))
    return TopicState(topic, topic_id, states, internal=False)
