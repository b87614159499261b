"""The verification of transactional batches, before Produce appends them.

The rules are in ``core.transaction_verification``; the transaction coordinator is asked here. It
may be another broker, which may be slow or dead.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.replication.replica import Replica
from headrace.core.parked import LOSSES, Event
from headrace.core.transaction_verification import (
    Codes,
    Verification,
    is_transactional,
    transactional_producer,
)
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.coordinators.transaction import TransactionCoordinator
    from headrace.broker.replication.waiting import Waiting


# Versions of Produce.
_FIRST_ABORTABLE = 11
_FIRST_THAT_ADDS = 12


def may_be_appended(replica: Replica, records: memoryview) -> bool:
    """Whether the batch can be appended without asking the transaction coordinator."""
    producer = transactional_producer(records)
    return producer is None or replica.log.producers.has_ongoing_transaction(*producer)


class CoordinatorAnswer:
    """The wait for the codes of a transaction coordinator about partitions of this broker.

    A partition that this broker loses meanwhile gets the code of the loss instead. When it has
    lost all of them, it no longer waits for the coordinator.
    """

    def __init__(self, replicas: Iterable[Replica]) -> None:
        """Create it when the coordinator is asked: every loss after that counts."""
        self._leaderships = {replica: replica.leadership for replica in replicas}
        self._lost: dict[TopicPartition, ErrorCode] = {}
        self._codes: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()

    async def wait(self, waiting: "Waiting", codes: "Awaitable[Codes]") -> "Codes":
        for replica, leadership in self._leaderships.items():
            if replica.log.offline is not None:
                self.happened(Event.DISK_OFFLINE, replica)
            elif replica.leadership is not leadership:
                self.happened(Event.LEADERSHIP_LOST, replica)
        asking = asyncio.ensure_future(codes)
        asking.add_done_callback(self._answered)
        waiting.park(self, self._leaderships)
        try:
            return {**await self._codes, **self._lost}
        finally:
            waiting.unpark(self)
            asking.cancel()

    def _answered(self, asking: "asyncio.Future[Codes]") -> None:
        if asking.cancelled():
            self._codes.cancel()
            return
        error = asking.exception()
        if self._codes.done():
            return
        if error is not None:
            self._codes.set_exception(error)
        else:
            self._codes.set_result(asking.result())

    # --- replication.waiting.Waiter

    def happened(self, event: Event, replica: Replica) -> bool:
        if event in LOSSES:
            is_disk = event is Event.DISK_OFFLINE
            self._lost[replica.topic_partition] = (
                ErrorCode.KAFKA_STORAGE_ERROR if is_disk else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        if len(self._lost) < len(self._leaderships):
            return False
        if not self._codes.done():
            self._codes.set_result({})
        return True

    def deadline_passed(self) -> None:
        raise AssertionError("parked without a deadline: the request to the coordinator has one")


class TransactionVerification:
    """The verification of one request's transactional batches."""

    def __init__(
        self,
        transactions: "TransactionCoordinator",
        context: Context,
        transactional_id: str | None,
        batches: Sequence[tuple[Replica, memoryview]],
    ) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self._verification: Verification | None = None
        self._led_elsewhere: set[TopicPartition] = set()
        self._replicas = {replica.topic_partition: replica for replica, _ in batches}
        self._answer: CoordinatorAnswer | None = None
        if transactional_id is not None or any(is_transactional(r) for _, r in batches):
            self._verification = Verification(
                transactional_id,
                [
                    (replica.topic_partition, replica.log.producers, records)
                    for replica, records in batches
                    if replica.leadership is not None
                ],
                transactions.postponed,
                adds=context.api_version >= _FIRST_THAT_ADDS,
                abortable=context.api_version >= _FIRST_ABORTABLE,
            )
            self._led_elsewhere = {
                replica.topic_partition for replica, _ in batches if replica.leadership is None
            }

    def ask(self) -> "Codes | Awaitable[Codes]":
        """Error codes of the verified partitions; the others need no verification."""
        verification = self._verification
        if verification is None:
            return {}
        partitions, producer = verification.partitions, verification.producer
        if not partitions or producer is None:
            return verification.refused
        if not verification.adds and not self._transactions.verifies_partitions:
            return {}
        assert self._transactional_id is not None
        codes = self._transactions.verify_or_add(
            self._transactional_id, producer, partitions, adds=verification.adds
        )
        if isinstance(codes, Awaitable):
            self._answer = CoordinatorAnswer(self._replicas[one] for one in partitions)
        return codes

    async def wait(self, waiting: "Waiting", codes: "Awaitable[Codes]") -> "Codes":
        """The codes that ``ask`` could not return at once."""
        assert self._answer is not None
        return await self._answer.wait(waiting, codes)

    def refusal(self, replica: Replica, records: memoryview, codes: "Codes") -> Rejected | None:
        """Why a batch cannot be appended; None if it can."""
        if self._verification is None:
            return None
        try:
            replica.require_leadership()
        except Rejected as refusal:
            return refusal  # it lost the state that the verification depends on
        if replica.topic_partition in self._led_elsewhere:
            return Rejected(  # not verified
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker did not lead {replica.topic_partition}",
            )
        return self._verification.refusal(
            replica.topic_partition, replica.log.producers, records, codes
        )
