"""The verification of transactional batches, before Produce appends them.

The rules are in ``core.transaction_verification``; the transaction coordinator is asked here.
"""

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.replication.replica import Replica
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


# Versions of Produce.
_FIRST_ABORTABLE = 11
_FIRST_THAT_ADDS = 12


def may_be_appended(replica: Replica, records: memoryview) -> bool:
    """Whether the batch can be appended without asking the transaction coordinator."""
    producer = transactional_producer(records)
    return producer is None or replica.log.producers.has_ongoing_transaction(*producer)


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
        return self._transactions.verify_or_add(
            self._transactional_id, producer, partitions, adds=verification.adds
        )

    def refusal(self, replica: Replica, records: memoryview, codes: "Codes") -> Rejected | None:
        """Why a batch cannot be appended; None if it can."""
        if self._verification is None:
            return None
        if replica.leadership is None or replica.topic_partition in self._led_elsewhere:
            # Not verified, or it lost the state that the verification depends on.
            return Rejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker does not lead {replica.topic_partition}",
            )
        return self._verification.refusal(
            replica.topic_partition, replica.log.producers, records, codes
        )
