"""Which replica a consumer should read from (KIP-392): one in its own rack that is in sync."""

from collections.abc import Mapping

from headrace.core.leadership import Leadership
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.ids import BrokerId, Offset

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def preferred_replica(
    rack: str,
    leadership: Leadership,
    fetch_offset: Offset,
    brokers: Mapping[BrokerId, BrokerEntry],
) -> BrokerId | None:
    """The follower in ``rack`` that a consumer should ask from now on; None: the leader.

    Only in-sync followers that hold ``fetch_offset`` count; of several the one that has most.
    """
    leader = brokers.get(leadership.broker_id)
    if leader is None or leader.rack == rack:
        return None
    candidates = [
        (progress.log_end, -broker_id)
        for broker_id, progress in leadership.followers.items()
        if broker_id in leadership.isr
        and progress.log_start <= fetch_offset <= progress.log_end
        and (broker := brokers.get(broker_id)) is not None
        and broker.rack == rack
    ]
    return BrokerId(-max(candidates)[1]) if candidates else None
