"""Requests about transactions, to their coordinators and to partition leaders."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headrace.cli.broker_requests import Address, ask
from headrace.cli.client import Connection, code_name
from headrace.cli.output import CommandFailed
from headrace.cli.partitions import Partition
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m

# The newest flexible version that Kafka 3.0 supports.
_WRITE_MARKERS_VERSION = 1
_UNKNOWN_HERE = (
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


class Listed(NamedTuple):
    transactional_id: str
    coordinator: int  # broker ID
    producer_id: int
    state: str


class Described(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at: int  # -1 if it never started
    partitions: tuple[Partition, ...]


class ActiveProducer(NamedTuple):
    """The state of a producer in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # -1 if no transaction of it has ended here
    last_timestamp: int
    start_offset: int  # of its open transaction; -1 if none is open


def list_all(
    connection: Connection,
    *,
    states: Sequence[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> list[Listed]:
    """The transactions of all brokers; each broker lists its own as coordinator."""
    request = m.ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern,
    )
    # The oldest version that has these filters, so that older brokers can answer too.
    version = 2 if pattern is not None else 1 if longer_than_ms >= 0 else 0
    found = []
    for broker, address in sorted(connection.brokers().items()):
        answer = ask(
            connection,
            address,
            version,
            request,
            m.ListTransactionsResponse,
        )
        if answer.error_code:
            raise CommandFailed(f"broker {broker}: {code_name(answer.error_code)}")
        if answer.unknown_state_filters:
            unknown = ", ".join(answer.unknown_state_filters)
            raise CommandFailed(f"broker {broker} does not know the state {unknown}")
        found += [
            Listed(one.transactional_id, int(broker), one.producer_id, one.transaction_state)
            for one in answer.transaction_states
        ]
    return sorted(found)


def describe(connection: Connection, transactional_id: str) -> Described:
    """The transaction as its coordinator knows it.

    Asks every broker: to look for the coordinator would create ``__transaction_state``.
    """
    request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    for broker, address in sorted(connection.brokers().items()):
        answer = ask(connection, address, 0, request, m.DescribeTransactionsResponse)
        (found,) = answer.transaction_states
        if not found.error_code:
            return _described(int(broker), found)
        if found.error_code not in _UNKNOWN_HERE:
            raise CommandFailed(f"{transactional_id}: {code_name(found.error_code)}")
    raise CommandFailed(
        f"no broker at {connection.bootstrap} knows transactional ID {transactional_id}; "
        "'headrace transactions list' lists the IDs"
    )


def _described(coordinator: int, found: Any) -> Described:
    return Described(
        found.transactional_id,
        coordinator,
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        tuple((topic.topic, partition) for topic in found.topics for partition in topic.partitions),
    )


def producers_of(
    connection: Connection, partitions: Iterable[Partition], leaders: dict[Partition, int]
) -> list[ActiveProducer]:
    """The producers of ``partitions``, as the leaders know them."""
    by_leader: dict[int, list[Partition]] = {}
    for partition in partitions:
        by_leader.setdefault(leaders[partition], []).append(partition)
    found = []
    for leader, wanted in sorted(by_leader.items()):
        found += _producers(connection, leader, wanted)
    return found


def _producers(
    connection: Connection, leader: int, partitions: Sequence[Partition]
) -> list[ActiveProducer]:
    request = m.DescribeProducersRequest
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    answer = ask(
        connection,
        _address(connection, leader),
        0,
        request(
            topics=[
                request.TopicRequest(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic.items()
            ]
        ),
        m.DescribeProducersResponse,
    )
    found = []
    for topic_answer in answer.topics:
        for partition_answer in topic_answer.partitions:
            if partition_answer.error_code:
                raise CommandFailed(
                    f"{topic_answer.name}:{partition_answer.partition_index}: "
                    f"{code_name(partition_answer.error_code)}"
                )
            found += [
                ActiveProducer(
                    topic_answer.name,
                    partition_answer.partition_index,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.coordinator_epoch,
                    producer.last_timestamp,
                    producer.current_txn_start_offset,
                )
                for producer in partition_answer.active_producers
            ]
    return found


def abort(connection: Connection, leader: int, hanging: ActiveProducer) -> None:
    """Abort a transaction in one partition, without its coordinator."""
    request = m.WriteTxnMarkersRequest
    answer = ask(
        connection,
        _address(connection, leader),
        _WRITE_MARKERS_VERSION,
        request(
            markers=[
                request.WritableTxnMarker(
                    producer_id=hanging.producer_id,
                    producer_epoch=hanging.producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=max(hanging.coordinator_epoch, 0),
                    topics=[
                        request.WritableTxnMarkerTopic(
                            name=hanging.topic, partition_indexes=[hanging.partition]
                        )
                    ],
                )
            ]
        ),
        m.WriteTxnMarkersResponse,
    )
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code:
        raise CommandFailed(f"{hanging.topic}:{hanging.partition}: {code_name(code)}")


def _address(connection: Connection, broker: int) -> Address:
    brokers = connection.brokers()
    if str(broker) not in brokers:
        raise CommandFailed(f"the leader, broker {broker}, is not available")
    return brokers[str(broker)]
