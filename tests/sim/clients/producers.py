"""Producers of one partition each: idempotent with several batches in flight, or plain."""

import asyncio
from dataclasses import dataclass
from typing import Any

from headrace.client.errors import Disconnected, Refused, error_code
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.wire import messages as m
from tests.history.history import History, Sent
from tests.sim.clients.session import ClientSession, refuse

PRODUCE_VERSION = 11
_INIT_VERSION = 4
_EPOCH_MAX = 32_767
BEFORE_THE_CLIENTS_TIMEOUT = 0.75  # the share of it that the broker may wait


@dataclass
class Batch:
    """Records that are sent, and sent again, as one."""

    records: list[Sent]
    created_at: float
    sequence: int = -1
    attempts: int = 0

    def acknowledge(self, history: History, base_offset: int, broker_id: int) -> None:
        """``base_offset`` is -1 if the broker did not say it."""
        # A leader confirms a repeated batch that an earlier leader appended.
        leader = broker_id if self.attempts == 1 or self.sequence < 0 else -1
        for number, sent in enumerate(self.records):
            offset = base_offset + number if base_offset >= 0 else -1
            history.acknowledge(sent, offset, leader)


def encode(
    batch: Batch, producer_id: int, epoch: int, now_ms: int, *, transactional: bool = False
) -> bytes:
    records = [
        Record(number, now_ms, sent.key, sent.value) for number, sent in enumerate(batch.records)
    ]
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=batch.sequence,
        transactional=transactional,
    )


def produce_request(
    place: TopicPartition, records: bytes, timeout_s: float, transactional_id: str | None = None
) -> Any:
    kind = m.ProduceRequest
    data = kind.PartitionProduceData(index=place.partition, records=records)
    return kind(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=int(timeout_s * 1000 * BEFORE_THE_CLIENTS_TIMEOUT),
        topic_data=[kind.TopicProduceData(name=place.topic, partition_data=[data])],
    )


class Producer:
    """Sends records with acks=all, again and again until each is acknowledged or too old.

    An idempotent one has up to five batches in flight and repeats them with the same sequences.
    If one gets too old, all batches that were sent have an unknown outcome; the rest goes on
    with a higher producer epoch.
    """

    def __init__(
        self,
        session: ClientSession,
        history: History,
        place: TopicPartition,
        *,
        idempotent: bool,
        keys: int = 0,
    ) -> None:
        """``keys``: how many keys the records have, for compacted topics."""
        self.session = session
        self.place = place
        self._history = history
        self._idempotent = idempotent
        self._keys = keys
        self._window = session.dice.randint(2, 5) if idempotent else 1
        self._queue: list[Batch] = []
        self._producer_id = self._epoch = -1
        self._next_sequence = 0
        self._count = 0
        self._attempt = 0

    async def run(self, count: int, pause_s: float) -> None:
        """Send ``count`` records, and wait for the outcome of all."""
        if self._idempotent:
            self._producer_id, self._epoch = await self.session.persistently(self._init)
        while self._count < count or self._queue:
            while self._count < count and len(self._queue) < self._window:
                self._queue.append(self._next_batch())
            await self._send_window()
            self._expire()
            if self._attempt:
                await self.session.pause(self._attempt)
            else:
                await asyncio.sleep(self.session.dice.uniform(0, 2 * pause_s))
        await self.session.close()

    async def _init(self) -> tuple[int, int]:
        request = m.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        response = await self.session.ask_any(request, m.InitProducerIdResponse, _INIT_VERSION)
        refuse(response.error_code, "InitProducerId")
        return response.producer_id, response.producer_epoch

    def _next_batch(self) -> Batch:
        records = []
        for _ in range(self.session.dice.randint(1, 3)):
            key = b"k-%d" % self.session.dice.randrange(self._keys) if self._keys else None
            value = f"{self.session.name}-{self._count}".encode()
            records.append(
                self._history.send(
                    self.session.name, self.place, value, key=key, idempotent=self._idempotent
                )
            )
            self._count += 1
        batch = Batch(records, self.session.now)
        self._give_sequence(batch)
        return batch

    def _give_sequence(self, batch: Batch) -> None:
        if self._idempotent:
            batch.sequence = self._next_sequence
            self._next_sequence += len(batch.records)

    # --- sending

    async def _send_window(self) -> None:
        """Send all batches of the queue on one connection, and take in the answers in order."""
        self._attempt += 1
        try:
            leader = await self.session.leader(self.place)
            connection = await self.session.connection(leader.broker_id)
        except (Disconnected, Refused):
            self.session.forget()
            return
        sending = list(self._queue)
        answers = await asyncio.gather(
            *(self._exchange(connection, batch) for batch in sending), return_exceptions=True
        )
        for batch, answer in zip(sending, answers, strict=True):
            if isinstance(answer, Disconnected):
                self.session.forget()
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._answered(batch, answer, leader.broker_id)

    async def _exchange(self, connection: Any, batch: Batch) -> Any:
        batch.attempts += 1
        now_ms = self.session.wall_clock_ms
        records = encode(batch, self._producer_id, self._epoch, now_ms)
        request = produce_request(self.place, records, self.session.times.request)
        response = await connection.request(request, m.ProduceResponse, api_version=PRODUCE_VERSION)
        return response.responses[0].partition_responses[0]

    def _answered(self, batch: Batch, answer: Any, broker_id: int) -> None:
        code = error_code(answer.error_code)
        is_first = bool(self._queue) and self._queue[0] is batch
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            batch.acknowledge(
                self._history, answer.base_offset if code is ErrorCode.NONE else -1, broker_id
            )
            self._queue.remove(batch)
            self._attempt = 0
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first:
            pass  # the batch before it failed, so this one is sent again behind it
        elif Refused(code, "").retriable:
            self.session.forget()
        else:
            self._history.expect_nothing_of(
                f"{self.session.name}: {code.name} from broker {broker_id} for sequence "
                f"{batch.sequence}, producer epoch {self._epoch}, on {self.place}"
            )
            self._queue.remove(batch)

    def _expire(self) -> None:
        if not self._queue:
            return
        if self.session.now - self._queue[0].created_at < self.session.times.delivery:
            return
        self._queue = [batch for batch in self._queue if not batch.attempts]
        if self._idempotent:
            assert self._epoch < _EPOCH_MAX
            self._epoch += 1
            self._next_sequence = 0
            for batch in self._queue:
                self._give_sequence(batch)
