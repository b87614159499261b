"""A transactional producer: transactions over several partitions, committed or aborted at random.

It speaks both protocols: the old one adds partitions before it writes to them and keeps its epoch;
the new one (KIP-890) lets brokers add them and gets a new epoch with every end.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.client.errors import Disconnected, Refused, error_code
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.history.history import Ending, History
from tests.sim.clients.producers import Batch, encode, produce_request
from tests.sim.clients.session import TRANSACTION, ClientSession, refuse

_INIT_VERSION = 4
_ADD_VERSION = 3
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
# The coordinator ended the transaction meanwhile, because it took too long.
_ENDED_BY_COORDINATOR = (
    *_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class _NoOutcome(Exception):
    """A write or an end has no known outcome: start again with a new epoch."""


class TransactionalProducer:
    def __init__(
        self,
        session: ClientSession,
        history: History,
        places: Sequence[TopicPartition],
        *,
        new_protocol: bool,
        timeout_s: float,
    ) -> None:
        self.session = session
        self.committed_count = 0
        self._history = history
        self._places = list(places)
        self._produce_version, self._end_version = (12, 5) if new_protocol else (11, 3)
        self._adds_partitions = not new_protocol
        self._timeout_s = timeout_s
        self._producer_id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._count = 0
        self._late_end: Any = None  # a request that arrives again in the next transaction

    @property
    def _transactional_id(self) -> str:
        return self.session.name

    async def run(self, count: int, pause_s: float) -> None:
        """Begin and end ``count`` transactions."""
        is_initialized = False
        for number in range(count):
            if not is_initialized:
                await self.session.persistently(self._init)
                is_initialized = True
            try:
                await self._transaction(f"{self.session.name}/{number}")
            except _NoOutcome:
                is_initialized = False
            await asyncio.sleep(self.session.dice.uniform(0, 2 * pause_s))
        # Whatever is open is aborted now, and not only when it times out.
        await self.session.persistently(self._init)
        await self.session.close()

    async def _init(self) -> None:
        request = m.InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=int(self._timeout_s * 1000),
            producer_id=-1,
            producer_epoch=-1,
        )
        response = await self._ask(request, m.InitProducerIdResponse, _INIT_VERSION)
        refuse(response.error_code, "InitProducerId")
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()

    async def _ask(self, request: Any, kind: Any, version: int) -> Any:
        coordinator = await self.session.coordinator(TRANSACTION, self._transactional_id)
        return await self.session.ask(coordinator, request, kind, version)

    async def _transaction(self, name: str) -> None:
        dice = self.session.dice
        places = dice.sample(self._places, dice.randint(1, len(self._places)))
        self._history.begin(name)
        self._history.end(name, Ending.ABORTED)  # until it is asked to commit
        give_up_at = self.session.now + self.session.times.delivery
        if self._adds_partitions:
            await self._reliably(lambda: self._add(places), give_up_at)
        for place in places:
            for _ in range(dice.randint(1, 2)):
                await self._write(name, place, give_up_at)
            await self._send_late_end()
            await asyncio.sleep(dice.uniform(0, 0.05))
        commits = dice.random() < 0.6
        if commits:
            self._history.end(name, Ending.UNKNOWN)
        self._attempts = 0
        await self._reliably(lambda: self._end(name, commits), give_up_at)

    async def _reliably(self, attempt: Callable[[], Awaitable[None]], give_up_at: float) -> None:
        try:
            await self.session.persistently(attempt, give_up_at)
        except Disconnected:
            raise _NoOutcome from None
        except Refused as refused:
            if refused.code not in _ENDED_BY_COORDINATOR:
                self._history.expect_nothing_of(
                    f"{self.session.name}, producer epoch {self._epoch}: {refused}"
                )
            raise _NoOutcome from None

    async def _add(self, places: list[TopicPartition]) -> None:
        kind = m.AddPartitionsToTxnRequest
        by_topic: dict[str, list[int]] = {}
        for place in places:
            by_topic.setdefault(place.topic, []).append(place.partition)
        request = kind(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                kind.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
        )
        response = await self._ask(request, m.AddPartitionsToTxnResponse, _ADD_VERSION)
        codes = [
            result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        codes.sort(key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)
        refuse(codes[0], "AddPartitionsToTxn")

    async def _write(self, name: str, place: TopicPartition, give_up_at: float) -> None:
        records = []
        for _ in range(self.session.dice.randint(1, 2)):
            value = f"{self.session.name}-{self._count}".encode()
            self._count += 1
            records.append(
                self._history.send(
                    self.session.name, place, value, idempotent=True, transaction=name
                )
            )
        batch = Batch(records, self.session.now, self._sequences.get(place, 0))
        self._sequences[place] = batch.sequence + len(records)
        await self._reliably(lambda: self._produce(place, batch), give_up_at)

    async def _produce(self, place: TopicPartition, batch: Batch) -> None:
        leader = await self.session.leader(place)
        now_ms = self.session.wall_clock_ms
        batch.attempts += 1
        data = encode(batch, self._producer_id, self._epoch, now_ms, transactional=True)
        request = produce_request(place, data, self.session.times.request, self._transactional_id)
        response = await self.session.ask(
            leader.broker_id, request, m.ProduceResponse, self._produce_version
        )
        answer = response.responses[0].partition_responses[0]
        code = error_code(answer.error_code)
        if code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            refuse(code, f"Produce to {place}, sequence {batch.sequence}")
        known = code is ErrorCode.NONE
        batch.acknowledge(self._history, answer.base_offset if known else -1, leader.broker_id)

    async def _send_late_end(self) -> None:
        """A copy of an earlier EndTxn arrives now; the old protocol could not tell it apart."""
        late, self._late_end = self._late_end, None
        if late is not None:
            with contextlib.suppress(Disconnected, Refused):
                await self._ask(late, m.EndTxnResponse, self._end_version)

    async def _end(self, name: str, commits: bool) -> None:
        self._attempts += 1
        request = m.EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commits,
        )
        response = await self._ask(request, m.EndTxnResponse, self._end_version)
        code = error_code(response.error_code)
        if code in _FENCED and self._attempts == 1:
            self._history.end(name, Ending.ABORTED)  # the coordinator did it before
        refuse(code, f"EndTxn of {name}, attempt {self._attempts}")
        self._history.end(name, Ending.COMMITTED if commits else Ending.ABORTED)
        self.committed_count += commits
        if self._end_version >= 5:
            if self.session.dice.random() < 0.3:
                self._late_end = request
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()
