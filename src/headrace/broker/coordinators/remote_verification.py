"""Transaction verification at a coordinator on another broker: AddPartitionsToTxn requests.

As in Kafka, a broker asks a transaction coordinator with one request at a time, for all
transactions that wait for an answer of that coordinator.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.coordinators.outgoing import Outgoing, distinct
from headrace.client.errors import ClientError, Refused, error_code
from headrace.core.transaction_verification import Codes
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, TopicPartition
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.peers import Peer, Peers
    from headrace.broker.tasks import BackgroundTasks


class _Job:
    """The partitions of one transaction that await verification."""

    __slots__ = ("adds", "done", "partitions", "producer", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        adds: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.adds = adds
        self.done: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()

    def answered(self, codes: ErrorCode | Codes) -> None:
        if self.done.done():
            return  # it was not waited for, or the broker is stopping
        if isinstance(codes, ErrorCode):
            self.done.set_result(dict.fromkeys(self.partitions, codes))
        else:
            unanswered = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self.done.set_result({tp: codes.get(tp, unanswered) for tp in self.partitions})


class RemoteVerification:
    def __init__(self, broker_id: BrokerId, peers: "Peers", tasks: "BackgroundTasks") -> None:
        client_id = f"AddPartitionsManager-client-{broker_id}"
        self._outgoing: Outgoing[_Job] = Outgoing(
            tasks,
            lambda coordinator: peers.peer(coordinator, client_id, negotiates=True),
            self._exchange,
        )
        self._pending: dict[BrokerId, dict[_Job, None]] = {}

    async def close(self) -> None:
        await self._outgoing.close()

    def verify_or_add(
        self,
        coordinator: BrokerId,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> "asyncio.Future[Codes]":
        """The codes of the coordinator; NETWORK_EXCEPTION if it does not answer."""
        job = _Job(transactional_id, producer, partitions, adds)
        self._pending.setdefault(coordinator, {})[job] = None
        self._outgoing.add(coordinator, job)
        return job.done

    def coordinators_changed(self, find: Callable[[str], BrokerId | None]) -> None:
        """Stop waiting for brokers that coordinate no longer: a dead one answers by a timeout.

        ``find`` returns the coordinator of a transactional id, None if it is this broker.
        """
        for coordinator, pending in self._pending.items():
            for job in pending:
                if find(job.transactional_id) != coordinator:
                    job.answered(ErrorCode.NOT_COORDINATOR)

    async def _exchange(self, peer: "Peer", jobs: list[_Job]) -> None:
        pending = self._pending[peer.broker_id]
        for batch in distinct(jobs, lambda job: job.transactional_id):
            codes = await self._ask(peer, [job for job in batch if not job.done.done()])
            for job in batch:
                del pending[job]
                if codes is ErrorCode.UNSUPPORTED_VERSION and not job.adds:
                    job.answered(ErrorCode.NONE)  # as in Kafka: the coordinator cannot verify
                elif isinstance(codes, ErrorCode):
                    job.answered(codes)
                else:
                    job.answered(codes.get(job.transactional_id, {}))

    async def _ask(self, peer: "Peer", jobs: list[_Job]) -> ErrorCode | dict[str, Codes]:
        """The codes by transactional id, or one code for all."""
        if not jobs:
            return {}
        request = m.AddPartitionsToTxnRequest(transactions=[_as_message(job) for job in jobs])
        try:
            response = await peer.request(request, m.AddPartitionsToTxnResponse)
        except Refused as refused:
            return refused.code
        except ClientError:
            return ErrorCode.NETWORK_EXCEPTION
        if response.error_code:
            return error_code(response.error_code)
        return {
            result.transactional_id: {
                TopicPartition(topic.name, partition.partition_index): error_code(
                    partition.partition_error_code
                )
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }


def _as_message(job: _Job) -> m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    request = m.AddPartitionsToTxnRequest
    by_topic: dict[str, list[int]] = {}
    for topic, partition in job.partitions:
        by_topic.setdefault(topic, []).append(partition)
    producer_id, producer_epoch = job.producer
    return request.AddPartitionsToTxnTransaction(
        transactional_id=job.transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=not job.adds,
        topics=[
            request.AddPartitionsToTxnTopic(name=topic, partitions=ids)
            for topic, ids in by_topic.items()
        ],
    )
