"""Where a leader's logs begin and end, for a follower whose position is not in them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.peers import Peer

_LIST_OFFSETS_VERSION = 9
_LATEST, _EARLIEST = -1, -2


class LogRange(NamedTuple):
    start: Offset
    end: Offset


async def find_log_ranges(
    peer: "Peer",
    broker_id: BrokerId,
    leader_epochs: Mapping[TopicPartition, LeaderEpoch],
    timeout_s: float,
) -> dict[TopicPartition, LogRange]:
    """Ask the leader. Partitions with an error, such as a new leader epoch, are left out."""
    ends = await _list_offsets(peer, broker_id, leader_epochs, _LATEST, timeout_s)
    starts = await _list_offsets(peer, broker_id, leader_epochs, _EARLIEST, timeout_s)
    return {each: LogRange(starts[each], ends[each]) for each in starts if each in ends}


async def _list_offsets(
    peer: "Peer",
    broker_id: BrokerId,
    leader_epochs: Mapping[TopicPartition, LeaderEpoch],
    timestamp: int,
    timeout_s: float,
) -> dict[TopicPartition, Offset]:
    request = m.ListOffsetsRequest
    answer = await peer.request(
        request(
            replica_id=broker_id,
            topics=[
                request.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        request.ListOffsetsPartition(
                            partition_index=partition,
                            current_leader_epoch=leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
                for (topic, partition), leader_epoch in leader_epochs.items()
            ],
        ),
        m.ListOffsetsResponse,
        api_version=_LIST_OFFSETS_VERSION,
        timeout_s=timeout_s,
    )
    return {
        TopicPartition(topic.name, partition.partition_index): Offset(partition.offset)
        for topic in answer.topics
        for partition in topic.partitions
        if not partition.error_code
    }
