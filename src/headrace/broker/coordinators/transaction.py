"""The transaction coordinator of this broker: its shards, their settings and their effects.

Before Produce and TxnOffsetCommit write to a partition in a transaction, they verify it here
(``verify_or_add``). Clients of transaction version 1 must have added the partition before;
for clients of version 2 the broker adds it (KIP-890).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.host import Host
from headrace.broker.coordinators.marker_sending import MarkerSender
from headrace.broker.coordinators.markers import Codes, Marker, MarkerWriter
from headrace.broker.coordinators.remote_verification import RemoteVerification
from headrace.broker.coordinators.runtime import CoordinatorRuntime, Decide
from headrace.core import features
from headrace.core.outcome import Outcome, Ticket
from headrace.core.topics import TRANSACTIONS_TOPIC
from headrace.core.transaction_verification import Postponed
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, Millis, TopicPartition

if TYPE_CHECKING:
    from headrace.broker.controller.producer_ids import ProducerIdSource
    from headrace.coordination.topic_store import TopicStore
    from headrace.core.transactions.effects import WriteMarkers
    from headrace.core.transactions.shard import Settings, TransactionShard

_log = logging.getLogger("headrace.coordinator")

_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinator(CoordinatorRuntime["TransactionShard"]):
    def __init__(
        self,
        host: Host,
        producer_ids: "ProducerIdSource",
        markers: MarkerWriter,
        topics: "TopicStore",
    ) -> None:
        super().__init__(
            host,
            TRANSACTIONS_TOPIC,
            "transaction.state.log.num.partitions",
            self._new_shard,
            self.carry_out_effect,
        )
        self._producer_ids = producer_ids
        self._markers = MarkerSender(
            markers, host.replicas, host.metadata, topics, host.peers, host.tasks
        )
        self._remote = RemoteVerification(host.replicas.broker_id, host.peers, host.tasks)
        host.metadata.on_topics_changed(self._topics_changed)
        self.postponed: Postponed = {}
        self._known_settings: tuple[object, object, Settings] | None = None

    def _new_shard(self, partition: int) -> "TransactionShard":
        # Imported with the first shard: most brokers have no transactions.
        from headrace.core.transactions.shard import TransactionShard

        replica = self._host.replicas.require(TRANSACTIONS_TOPIC, partition)
        leadership = replica.require_leadership()
        # Markers have the leader epoch of their coordinator, so that partitions can fence old ones.
        return TransactionShard(lambda: leadership.leader_epoch, self._settings)

    def _topics_changed(self, deleted: Sequence[str]) -> None:
        self.shards.refresh()
        self._markers.leaders_changed()
        self._remote.coordinators_changed(self._other_coordinator)

    async def disconnect(self) -> None:
        """Close the connections to other brokers."""
        await self._markers.close()
        await self._remote.close()

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

    def carry_out_effect(self, partition: int, effect: object) -> None:
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

        marker = Marker(
            effect.producer_id,
            effect.producer_epoch,
            effect.coordinator_epoch,
            effect.commit,
            effect.transaction_version,
        )

        def report(codes: Codes) -> None:
            self._tell_if_led(
                partition, lambda shard, now: markers.answered(shard, effect, codes, now)
            )

        self._markers.send(marker, effect.partitions, report)

    def _tell_if_led(
        self, partition: int, decide: Callable[["TransactionShard", Millis], Outcome]
    ) -> None:
        try:
            self.tell(partition, decide)
        except Rejected as refusal:
            # The other broker reads the transactions from the log, and repeats this step.
            _log.info(
                "Another broker coordinates %s-%d and continues its transactions: %s",
                self.topic,
                partition,
                refusal,
            )

    async def _draw_producer_id(self, partition: int) -> None:
        try:
            producer_id = await self._producer_ids.next()
        except Rejected as refusal:
            _log.warning(
                "Could not get a producer id for %s-%d: %s. Retrying",
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
        """Whether the broker verifies partitions for clients of transaction version 1."""
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
        coordinator = self._other_coordinator(transactional_id)
        if coordinator is not None:
            return self._remote.verify_or_add(
                coordinator, transactional_id, producer, partitions, adds=adds
            )
        from headrace.core.transactions import add_partitions

        decision = add_partitions.verify_or_add if adds else add_partitions.verify

        def decide(shard: "TransactionShard", ticket: Ticket, now: Millis) -> Outcome:
            return decision(shard, ticket, transactional_id, producer, partitions, now)

        try:
            answer = self.ask(transactional_id, decide)
        except Rejected as refusal:
            return dict.fromkeys(partitions, refusal.code)
        return answer if isinstance(answer, asyncio.Future) else _codes_of(answer)

    def _other_coordinator(self, transactional_id: str) -> BrokerId | None:
        """The broker to ask, if it is not this one; None also if no broker can be asked."""
        partition = self.partition_of(transactional_id)
        if partition in self.shards:
            return None
        state = self._host.metadata.current.partition(self.topic, partition)
        if state is None or state.leader in (NO_LEADER, self._host.replicas.broker_id):
            return None
        return state.leader


def _codes_of(answer: Any) -> Codes:
    from headrace.core.transactions.answers import VerifiedPartitions

    if isinstance(answer, Mapping):
        return answer  # of another broker
    if isinstance(answer, VerifiedPartitions):
        return answer.codes
    return {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(
            partition.partition_error_code
        )
        for topic in answer.topic_results
        for partition in topic.results_by_partition
    }
