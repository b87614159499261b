"""States of one partition as a controller decides them, alone and for a running broker.

On one node nothing waits for a follower. A decision with a second replica in the ISR gives a
partition a follower that fetches nothing; the next one takes it away again.
"""

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


def decide(node, topic, partition=0, *, isr, replicas=(1, 2), leader=1, min_insync_replicas=1):
    """Tell a broker with id 1 the controller's next decision; call it on the broker's loop."""
    replica = node.replicas.get(topic, partition)
    config = replica.log.config
    if config.min_insync_replicas != min_insync_replicas:
        changed = config._replace(min_insync_replicas=min_insync_replicas)
        node.replicas.update_topic_config(topic, changed)
    leader_epoch = replica.partition.leader_epoch + 1
    state = a_state(leader, leader_epoch, isr, replicas)
    node.replicas.apply_state(replica, state)
