"""The transaction coordinator of this broker: its shards, their settings and their effects.

Before Produce and TxnOffsetCommit write to a partition in a transaction, they verify it here
(``verify_or_add``). First-generation clients must have added the partition before; for
second-generation clients the broker adds it (KIP-890).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.markers import Codes, Marker, MarkerWriter
from headrace.broker.coordinators.runtime import CoordinatorRuntime, Decide, Host
from headrace.core import features
from headrace.core.outcome import Outcome, Ticket
from headrace.core.topics import TRANSACTIONS_TOPIC
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, TopicPartition

if TYPE_CHECKING:
    from headrace.broker.controller.producer_ids import ProducerIdSource
    from headrace.core.transactions.effects import WriteMarkers
    from headrace.core.transactions.shard import Settings, TransactionShard

_log = logging.getLogger("headrace.coordinator")

_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionCoordinator(CoordinatorRuntime["TransactionShard"]):
    def __init__(self, host: Host, producer_ids: "ProducerIdSource", markers: MarkerWriter) -> None:
        super().__init__(
            host,
            TRANSACTIONS_TOPIC,
            "transaction.state.log.num.partitions",
            self._new_shard,
            self._carry_out_effect,
        )
        self._producer_ids = producer_ids
        self._markers = markers
        host.metadata.on_topics_changed(lambda deleted: self.refresh())
        # Partition, producer id and epoch -> the lowest sequence that the client must retry,
        # because its transaction could not be verified. Losing an entry costs at most an abort.
        self.postponed: dict[tuple[TopicPartition, int, int], int] = {}
        self._known_settings: tuple[object, object, Settings] | None = None

    def _new_shard(self, partition: int) -> "TransactionShard":
        # Imported with the first shard: most brokers have no transactions.
        from headrace.core.transactions.shard import TransactionShard

        replica = self._host.replicas.require(TRANSACTIONS_TOPIC, partition)
        # Markers have the leader epoch of their coordinator, so that partitions can fence old ones.
        return TransactionShard(replica.lead().leader_epoch, self._settings)

    def _settings(self) -> "Settings":
        config = self._host.dynamic_config.config
        levels = self._host.metadata.feature_levels
        known = self._known_settings
        if known is not None and known[0] is config and known[1] is levels:
            return known[2]
        from headrace.core.transactions.shard import Settings

        settings = Settings(
            transaction_version=levels.get(features.TRANSACTION_VERSION, 0),
            timeout_ms_max=config.int("transaction.max.timeout.ms"),
            expiration_ms=config.int("transactional.id.expiration.ms"),
            expiration_interval_ms=config.int(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
        )
        self._known_settings = config, levels, settings
        return settings

    # --- effects -----------------------------------------------------------------

    def _carry_out_effect(self, partition: int, effect: object) -> None:
        from headrace.core.transactions.effects import DrawProducerId, WriteMarkers

        match effect:
            case WriteMarkers():
                self._write_markers(partition, effect)
            case DrawProducerId():
                self._host.tasks.spawn(self._draw_producer_id(partition))
            case _:
                raise AssertionError(effect)

    def _write_markers(self, partition: int, effect: "WriteMarkers") -> None:
        from headrace.core.transactions import markers

        topics = self._host.metadata.current.topics
        # A deleted partition needs no marker: its records are gone.
        present: list[TopicPartition] = []
        deleted: list[TopicPartition] = []
        for topic_partition in effect.partitions:
            state = topics.get(topic_partition.topic)
            exists = state is not None and topic_partition.partition < len(state.partitions)
            (present if exists else deleted).append(topic_partition)

        def report(codes: Codes) -> None:
            all_codes = {**codes, **dict.fromkeys(deleted, ErrorCode.NONE)}
            self._tell_if_led(
                partition, lambda shard, now: markers.answered(shard, effect, all_codes, now)
            )

        if not present:
            report({})
            return
        marker = Marker(
            effect.producer_id,
            effect.producer_epoch,
            effect.coordinator_epoch,
            effect.commit,
            effect.transaction_version,
        )
        self._markers.write(marker, present, report)

    def _tell_if_led(
        self, partition: int, decide: Callable[["TransactionShard", Millis], Outcome]
    ) -> None:
        try:
            self.tell(partition, decide)
        except Rejected as refusal:
            # Another broker is the coordinator now; it continues after loading the shard.
            _log.info("Dropped a result for the shard of %s-%d: %s", self.topic, partition, refusal)

    async def _draw_producer_id(self, partition: int) -> None:
        try:
            producer_id = await self._producer_ids.next()
        except Rejected as refusal:
            _log.warning(
                "Could not get a producer id for %s-%d: %s. The shard retries",
                self.topic,
                partition,
                refusal,
            )
            return

        def give(shard: "TransactionShard", now: Millis) -> Outcome:
            shard.producer_id_drawn(producer_id)
            return Outcome()

        self._tell_if_led(partition, give)

    # --- asking with a new producer id ---------------------------------------------

    def ask_drawing(self, transactional_id: str, decide: "Decide[TransactionShard]") -> Any:
        """As ``ask``, but a coroutine if ``decide`` needs a new producer id."""
        from headrace.core.transactions.effects import NeedsProducerId

        try:
            return self.ask(transactional_id, decide)
        except NeedsProducerId:
            return self._draw_and_ask(transactional_id, decide)

    async def _draw_and_ask(self, transactional_id: str, decide: "Decide[TransactionShard]") -> Any:
        producer_id = await self._producer_ids.next()

        def decide_with_id(shard: "TransactionShard", ticket: Ticket, now: Millis) -> Outcome:
            shard.producer_id_drawn(producer_id)
            return decide(shard, ticket, now)

        answer = self.ask(transactional_id, decide_with_id)
        return await answer if isinstance(answer, asyncio.Future) else answer

    # --- transaction verification --------------------------------------------------

    @property
    def verifies_partitions(self) -> bool:
        """Whether the broker verifies partitions of first-generation clients."""
        config = self._host.dynamic_config.config
        return config.bool("transaction.partition.verification.enable")

    def verify_or_add(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> "Codes | Awaitable[Codes]":
        """Error codes: NONE for each partition that the producer's transaction may write to.

        With ``adds`` missing partitions are added (KIP-890 part 2). Otherwise they are refused.
        """
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        answer = self._verify_once(transactional_id, producer, partitions, adds)
        if isinstance(answer, asyncio.Future) or (adds and _CONCURRENT in answer.values()):
            return self._verify_later(answer, transactional_id, producer, partitions, adds)
        return answer

    async def _verify_later(
        self,
        answer: "Codes | asyncio.Future[Any]",
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        adds: bool,
    ) -> Codes:
        config = self._host.dynamic_config.config
        backoff_s = config.int("add.partitions.to.txn.retry.backoff.ms") / 1000
        backoff_max_s = config.int("add.partitions.to.txn.retry.backoff.max.ms") / 1000
        give_up_at = self._host.loop.time() + backoff_max_s
        while True:
            if isinstance(answer, asyncio.Future):
                try:
                    answer = _codes_of(await answer)
                except Rejected as refusal:
                    return dict.fromkeys(partitions, refusal.code)
            # The previous transaction is about to end. Wait for it here: most clients would retry
            # much later.
            if (
                not adds
                or _CONCURRENT not in answer.values()
                or self._host.loop.time() >= give_up_at
            ):
                return answer
            await asyncio.sleep(backoff_s)
            answer = self._verify_once(transactional_id, producer, partitions, adds)

    def _verify_once(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        adds: bool,
    ) -> "Codes | asyncio.Future[Any]":
        from headrace.core.transactions import add_partitions

        decision = add_partitions.verify_or_add if adds else add_partitions.verify

        def decide(shard: "TransactionShard", ticket: Ticket, now: Millis) -> Outcome:
            return decision(shard, ticket, transactional_id, producer, partitions, now)

        try:
            answer = self.ask(transactional_id, decide)
        except Rejected as refusal:
            return dict.fromkeys(partitions, refusal.code)
        return answer if isinstance(answer, asyncio.Future) else _codes_of(answer)


def _codes_of(answer: Any) -> Codes:
    from headrace.core.transactions.answers import VerifiedPartitions

    if isinstance(answer, VerifiedPartitions):
        return answer.codes
    return {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(
            partition.partition_error_code
        )
        for topic in answer.topic_results
        for partition in topic.results_by_partition
    }


_REASONS = {
    ErrorCode.PRODUCER_FENCED: "a newer instance of the producer has fenced this one",
    ErrorCode.TRANSACTION_ABORTABLE: "the partition was not added to the transaction",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id belongs to another producer id",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "the batch is part of a transaction, but the request has no transactional id"
    ),
}
_NOT_YET = "the partition could not be verified yet; retry: "


def refusal_of(code: ErrorCode, *, adds: bool, abortable: bool, retriable: ErrorCode) -> Rejected:
    """The error of a partition that was not verified, with a code that the client's version knows.

    ``abortable``: the version knows TRANSACTION_ABORTABLE. ``retriable``: the code that makes the
    client retry.
    """
    reason = _REASONS.get(code, "the transaction coordinator refused the partition")
    if code is ErrorCode.TRANSACTION_ABORTABLE and not abortable:
        code = ErrorCode.INVALID_TXN_STATE
    elif code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code in RETRIED:
        reason = _NOT_YET + code.name
        if not (adds and code is _CONCURRENT):
            code = retriable
    return Rejected(code, reason)
