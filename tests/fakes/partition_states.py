"""States of one partition as a controller decides them."""

from headrace.model.cluster_metadata import PartitionState
from headrace.model.ids import NO_TOPIC_ID


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
