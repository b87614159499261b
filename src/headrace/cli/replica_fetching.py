"""Fetch a partition from each of its replicas, as a consumer does from one of them.

Followers answer consumers since Kafka 2.4 (Fetch version 11), up to the high watermark that they
know. A fetch at the high watermark returns no records, but the bounds of that replica's log.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.cli.client import code_name
from headrace.client.cluster import Cluster
from headrace.client.errors import ClientError, Refused, error_code
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m

FETCH_SIZE = 1 << 20
_WAIT_MS = 500
_BY_NAME_VERSION_MAX = 12
_NO_TOPIC_ID = bytes(16)
_LATEST = -1
_READ_COMMITTED = 1


class ReplicaPlaces(NamedTuple):
    """A partition and the brokers that hold it."""

    topic: str
    topic_id: bytes
    partition: int
    leader: int
    in_sync: list[int]  # live and in the ISR; the leader first
    others: list[int]  # replicas that cannot be compared: offline, or not in sync
    is_compacted: bool

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class Fetched(NamedTuple):
    """One replica's response, or why there is none."""

    records: memoryview = memoryview(b"")
    high_watermark: int = -1
    stable_end: int = -1
    log_start: int = -1
    aborted: tuple[tuple[int, int], ...] = ()  # producer and first offset of aborted transactions
    error: str | None = None
    code: ErrorCode = ErrorCode.NONE


def high_watermark(cluster: Cluster, place: ReplicaPlaces) -> int:
    """The high watermark of the leader. Raises ClientError."""
    kind = m.ListOffsetsRequest
    request = kind(
        replica_id=-1,
        topics=[
            kind.ListOffsetsTopic(
                name=place.topic,
                partitions=[
                    kind.ListOffsetsPartition(
                        partition_index=place.partition,
                        current_leader_epoch=-1,
                        timestamp=_LATEST,
                    )
                ],
            )
        ],
    )
    answer = cluster.ask(place.leader, request, m.ListOffsetsResponse)
    found = answer.topics[0].partitions[0]
    if found.error_code:
        raise Refused(error_code(found.error_code), f"reading the end of {place.name}")
    return found.offset


def fetch(
    cluster: Cluster,
    place: ReplicaPlaces,
    brokers: Iterable[int],
    offset: int,
    *,
    wait: bool = True,
) -> dict[int, Fetched]:
    """What each broker returns at ``offset``. Without ``wait``, also an empty response at once."""
    request = m.FetchRequest(
        replica_id=-1,
        max_wait_ms=_WAIT_MS if wait else 0,
        min_bytes=1,
        max_bytes=FETCH_SIZE,
        # A compacted log is compared by its committed records: a cleaning drops aborted ones.
        isolation_level=_READ_COMMITTED if place.is_compacted else 0,
        session_epoch=-1,
        topics=[
            m.FetchRequest.FetchTopic(
                topic=place.topic,
                topic_id=place.topic_id,
                partitions=[
                    m.FetchRequest.FetchPartition(
                        partition=place.partition,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=FETCH_SIZE,
                    )
                ],
            )
        ],
    )
    version_max = _BY_NAME_VERSION_MAX if place.topic_id == _NO_TOPIC_ID else None
    found: dict[int, Fetched] = {}
    asked = []
    for broker in brokers:
        try:
            cluster.connection(broker).send(request, version_max=version_max)
            asked.append(broker)
        except ClientError as failure:
            cluster.drop(broker)
            found[broker] = Fetched(error=str(failure))
    for broker in asked:
        try:
            answer = cluster.connection(broker).receive(m.FetchResponse)
            found[broker] = _fetched(answer)
        except ClientError as failure:
            cluster.drop(broker)
            found[broker] = Fetched(error=str(failure))
    return found


def _fetched(answer: m.FetchResponse) -> Fetched:
    if answer.error_code:
        return _refused(answer.error_code)
    if not answer.responses:
        return Fetched(error="throttled by a quota")
    partition = answer.responses[0].partitions[0]
    if partition.error_code:
        return _refused(partition.error_code)
    return Fetched(
        memoryview(partition.records or b""),
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        tuple((one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()),
    )


def _refused(code: int) -> Fetched:
    return Fetched(error=code_name(code), code=error_code(code))
