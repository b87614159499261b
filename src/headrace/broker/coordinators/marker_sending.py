"""Transaction markers on their way to the leaders of their partitions.

A marker for a partition that this broker leads is written here (``markers``). For all others the
leaders get WriteTxnMarkers requests: one in flight to each broker, with all markers for it.

A partition that the metadata of this broker does not have may be deleted, or so new that no
controller has told this broker. Only the coordination tree knows: a marker that is dropped would
leave the transaction open there.

The transaction coordinator repeats what failed. A marker may therefore be written twice, or by two
coordinators. Partitions notice that by the epochs of the producer and of the coordinator.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.broker.coordinators.markers import Codes, Marker
from headrace.broker.coordinators.outgoing import Outgoing, distinct
from headrace.broker.repeat_limit import RepeatLimit
from headrace.client.errors import ClientError, error_code
from headrace.coordination.tree import SessionLost
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import Corrupt, ErrorCode
from headrace.model.ids import BrokerId, TopicPartition
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.coordinators.markers import MarkerWriter
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.peers import Peer, Peers
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.tasks import BackgroundTasks
    from headrace.coordination.topic_store import TopicStore

_log = logging.getLogger("headrace.coordinator")

# Kafka 3.9 sends version 1. Version 2 has the transaction version, without which a partition could
# not tell a late marker from the marker of the producer's next transaction (KIP-890).
_VERSION, _VERSION_WITH_TRANSACTION_VERSION = 1, 2
_FIRST_TRANSACTION_VERSION_SENT = 2

Report = Callable[[Codes], None]


# A marker that a broker has not answered yet: producer id and epoch, and the partition. A retry may
# have a higher coordinator epoch.
_Key = tuple[int, int, TopicPartition]


class _Job:
    """One marker for partitions that one broker leads, until each of them has a result."""

    __slots__ = ("_pending", "_report", "marker", "partitions")

    def __init__(
        self,
        marker: Marker,
        partitions: list[TopicPartition],
        report: Report,
        pending: "dict[_Key, _Job]",
    ) -> None:
        """``pending`` has all jobs for the broker; this adds and removes itself."""
        self.marker = marker
        self.partitions = dict.fromkeys(partitions)  # without a result yet
        self._report = report
        self._pending = pending
        for topic_partition in partitions:
            pending[_key(marker, topic_partition)] = self

    def answered(self, codes: Codes) -> None:
        awaited = {tp: code for tp, code in codes.items() if tp in self.partitions}
        for topic_partition in awaited:
            del self.partitions[topic_partition]
            del self._pending[_key(self.marker, topic_partition)]
        if awaited:
            self._report(awaited)


def _key(marker: Marker, topic_partition: TopicPartition) -> _Key:
    return marker.producer_id, marker.producer_epoch, topic_partition


class MarkerSender:
    def __init__(
        self,
        writer: "MarkerWriter",
        replicas: "ReplicaManager",
        metadata: "MetadataCache",
        topics: "TopicStore",
        peers: "Peers",
        tasks: "BackgroundTasks",
    ) -> None:
        self._writer = writer
        self._replicas = replicas
        self._metadata = metadata
        self._topics = topics
        self._tasks = tasks
        client_id = f"broker-{replicas.broker_id}-txn-marker-sender"
        self._outgoing: Outgoing[_Job] = Outgoing(
            tasks, lambda broker_id: peers.peer(broker_id, client_id), self._exchange
        )
        self._pending: dict[BrokerId, dict[_Key, _Job]] = {}
        self._looked_up: set[_Key] = set()  # while the tree is asked
        self._limit = RepeatLimit()

    async def close(self) -> None:
        await self._outgoing.close()

    def send(self, marker: Marker, partitions: Iterable[TopicPartition], report: Report) -> None:
        """Write ``marker`` to all partitions.

        ``report`` is called for the partitions of each leader, once it has answered; for those of
        this broker perhaps before this returns. A partition whose marker is in flight to its
        leader is not sent again.
        """
        metadata = self._metadata.current
        led_here: list[TopicPartition] = []
        led_elsewhere: dict[BrokerId, list[TopicPartition]] = {}
        settled: dict[TopicPartition, ErrorCode] = {}
        for topic_partition in partitions:
            replica = self._replicas.get(*topic_partition)
            state = metadata.partition(*topic_partition)
            if replica is not None and replica.leadership is not None:
                led_here.append(topic_partition)
            elif state is None:
                self._look_up(marker, topic_partition, report)
            elif state.leader in (NO_LEADER, self._replicas.broker_id):
                settled[topic_partition] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                led_elsewhere.setdefault(state.leader, []).append(topic_partition)
        for leader, theirs in led_elsewhere.items():
            self._queue(leader, marker, theirs, report)
        if led_here:
            self._writer.write(marker, led_here, report)
        if settled:
            report(settled)

    def _look_up(self, marker: Marker, topic_partition: TopicPartition, report: Report) -> None:
        """Ask the tree for a partition that the metadata does not have."""
        key = _key(marker, topic_partition)

        async def look_up() -> None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            with suppress(SessionLost, Corrupt):
                if not await self._topics.has_partition(topic_partition):
                    code = ErrorCode.NONE  # deleted, and its records are gone
            self._looked_up.discard(key)
            report({topic_partition: code})

        if key not in self._looked_up:
            self._looked_up.add(key)
            self._tasks.spawn(look_up())

    def _queue(
        self, leader: BrokerId, marker: Marker, partitions: list[TopicPartition], report: Report
    ) -> None:
        pending = self._pending.setdefault(leader, {})
        wanted = [tp for tp in partitions if _key(marker, tp) not in pending]
        if wanted:
            self._outgoing.add(leader, _Job(marker, wanted, report, pending))

    def leaders_changed(self) -> None:
        """Stop waiting for brokers that lead no longer: a dead one answers only by a timeout."""
        metadata = self._metadata.current
        for leader, pending in self._pending.items():
            moved: dict[_Job, list[TopicPartition]] = {}
            for (_, _, topic_partition), job in pending.items():
                state = metadata.partition(*topic_partition)
                if state is None or state.leader != leader:
                    moved.setdefault(job, []).append(topic_partition)
            for job, partitions in moved.items():
                job.answered(dict.fromkeys(partitions, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # --- requests ------------------------------------------------------------

    async def _exchange(self, peer: "Peer", jobs: list[_Job]) -> None:
        # Kafka's brokers answer by producer id, in any order.
        for batch in distinct(jobs, lambda job: job.marker.producer_id):
            sent = {job.marker.producer_id: job for job in batch if job.partitions}
            if not sent:
                continue
            answers = await self._ask(peer, list(sent.values()))
            for producer_id, job in sent.items():
                unanswered = dict.fromkeys(job.partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
                job.answered({**unanswered, **answers.get(producer_id, {})})

    async def _ask(self, peer: "Peer", jobs: list[_Job]) -> dict[int, Codes]:
        """The codes by producer id."""
        versions = [job.marker.transaction_version for job in jobs]
        api_version = _VERSION
        if max(versions) >= _FIRST_TRANSACTION_VERSION_SENT:
            api_version = _VERSION_WITH_TRANSACTION_VERSION
        request = m.WriteTxnMarkersRequest(markers=[_as_message(job) for job in jobs])
        try:
            response = await peer.request(
                request, m.WriteTxnMarkersResponse, api_version=api_version
            )
        except ClientError as error:
            now = asyncio.get_running_loop().time()
            repetitions = self._limit.occurred(peer.broker_id, now)
            if repetitions is not None:
                _log.warning(
                    "Could not send transaction markers to broker %d: %s. Retrying%s",
                    peer.broker_id,
                    error,
                    repetitions,
                )
            return {
                job.marker.producer_id: dict.fromkeys(job.partitions, ErrorCode.NETWORK_EXCEPTION)
                for job in jobs
            }
        return {
            result.producer_id: {
                TopicPartition(topic.name, partition.partition_index): error_code(
                    partition.error_code
                )
                for topic in result.topics
                for partition in topic.partitions
            }
            for result in response.markers
        }


def _as_message(job: _Job) -> m.WriteTxnMarkersRequest.WritableTxnMarker:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in job.partitions:
        by_topic.setdefault(topic, []).append(partition)
    marker = job.marker
    return m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
        topics=[
            m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=ids)
            for topic, ids in by_topic.items()
        ],
    )
