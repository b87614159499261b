"""Consumers of one partition each: they fetch from the leader, and ask for the latest offset."""

import asyncio
from collections.abc import Iterator
from typing import Any

from headrace.client.errors import Disconnected, Refused
from headrace.model.ids import TopicPartition
from headrace.records.batch import headers
from headrace.records.record import ABORT, iter_records, marker_type
from headrace.wire import messages as m
from tests.history.history import Entry, History, Reading
from tests.sim.clients.session import ClientSession, Leader, refuse

_FETCH_VERSION = 12
_LIST_OFFSETS_VERSION = 7
_LEADER_EPOCH_VERSION = 4
LATEST = -1


class Fetcher:
    """Reads a partition from a position on, from any leader, and notes what it sees."""

    def __init__(
        self,
        session: ClientSession,
        history: History,
        place: TopicPartition,
        *,
        committed_only: bool = False,
        position: int = 0,
    ) -> None:
        self.session = session
        self.place = place
        self.position = position
        self.high_watermark = -1  # of the last fetch
        self.last_stable_offset = -1
        self.log_start = 0
        self._history = history
        self._committed_only = committed_only
        self._reading: Reading = history.start_reading(
            session.name, place, position, committed_only=committed_only
        )
        self._last_epoch = -1  # of the last batch read
        self._checked_epoch = -1  # of the leader that confirmed the position

    async def fetch(self, max_wait_ms: int = 100, max_bytes: int = 1 << 20) -> list[Entry]:
        """One fetch. Raises Refused or Disconnected."""
        leader = await self.session.leader(self.place)
        if leader.epoch > self._checked_epoch:
            await self._check_position(leader)
        kind = m.FetchRequest
        wanted = kind.FetchPartition(
            partition=self.place.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self.position,
            partition_max_bytes=max_bytes,
        )
        request = kind(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(self._committed_only),
            session_epoch=-1,
            topics=[kind.FetchTopic(topic=self.place.topic, partitions=[wanted])],
        )
        response = await self.session.ask(
            leader.broker_id, request, m.FetchResponse, _FETCH_VERSION
        )
        refuse(response.error_code, "fetch")
        answer = response.responses[0].partitions[0]
        refuse(answer.error_code, f"fetch of {self.place} at {self.position}, leader {leader}")
        return self._take(answer)

    def _take(self, answer: Any) -> list[Entry]:
        self.high_watermark = answer.high_watermark
        self.last_stable_offset = answer.last_stable_offset
        self.log_start = answer.log_start_offset
        entries = []
        for entry in self._entries(bytes(answer.records or b""), answer.aborted_transactions):
            if entry.offset >= self._reading.end:
                entries.append(entry)
        self._history.read(self._reading, entries, self.position)
        return entries

    def _entries(self, data: bytes, aborted_transactions: Any) -> Iterator[Entry]:
        """What a consumer with this isolation level sees; moves the position."""
        not_yet = sorted((a.first_offset, a.producer_id) for a in aborted_transactions or [])
        aborted: set[int] = set()
        for at, header in headers(data):
            while not_yet and not_yet[0][0] <= header.last_offset:
                aborted.add(not_yet.pop(0)[1])
            batch = data[at : at + header.size]
            is_hidden = header.is_transactional and header.producer_id in aborted
            for record in iter_records(batch):
                if header.is_control:
                    if marker_type(record.key) == ABORT:
                        aborted.discard(header.producer_id)
                    yield Entry(record.offset, None, header.leader_epoch)
                elif not (self._committed_only and is_hidden):
                    yield Entry(record.offset, record.value, header.leader_epoch, record.key)
            self.position = max(self.position, header.next_offset)
            self._last_epoch = header.leader_epoch

    async def _check_position(self, leader: Leader) -> None:
        """Ask a new leader whether its log still holds what was read."""
        if self._last_epoch >= 0:
            kind = m.OffsetForLeaderEpochRequest
            wanted = kind.OffsetForLeaderPartition(
                partition=self.place.partition,
                current_leader_epoch=leader.epoch,
                leader_epoch=self._last_epoch,
            )
            topic = kind.OffsetForLeaderTopic(topic=self.place.topic, partitions=[wanted])
            response = await self.session.ask(
                leader.broker_id,
                kind(replica_id=-1, topics=[topic]),
                m.OffsetForLeaderEpochResponse,
                _LEADER_EPOCH_VERSION,
            )
            answer = response.topics[0].partitions[0]
            refuse(answer.error_code, "OffsetForLeaderEpoch")
            if answer.end_offset < self.position:
                self._history.expect_nothing_of(
                    f"{self.session.name}: position {self.position} of {self.place}, epoch "
                    f"{self._last_epoch}; broker {leader.broker_id} (epoch {leader.epoch}) ends "
                    f"that epoch at {answer.end_offset}"
                )
        self._checked_epoch = leader.epoch

    async def latest(self) -> int:
        """ListOffsets, noted in the history. Raises Refused or Disconnected."""
        leader = await self.session.leader(self.place)
        kind = m.ListOffsetsRequest
        wanted = kind.ListOffsetsPartition(
            partition_index=self.place.partition,
            current_leader_epoch=leader.epoch,
            timestamp=LATEST,
        )
        topic = kind.ListOffsetsTopic(name=self.place.topic, partitions=[wanted])
        response = await self.session.ask(
            leader.broker_id,
            kind(replica_id=-1, isolation_level=0, topics=[topic]),
            m.ListOffsetsResponse,
            _LIST_OFFSETS_VERSION,
        )
        answer = response.topics[0].partitions[0]
        refuse(answer.error_code, "ListOffsets")
        self._history.answer_latest(self.session.name, self.place, answer.offset)
        return int(answer.offset)


class Consumer:
    """Fetches until it is told to stop, and sometimes asks for the latest offset."""

    def __init__(
        self,
        session: ClientSession,
        history: History,
        place: TopicPartition,
        *,
        committed_only: bool = False,
    ) -> None:
        self.session = session
        self._history = history
        self.fetcher = Fetcher(session, history, place, committed_only=committed_only)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self, pause_s: float) -> None:
        dice = self.session.dice
        attempt = 0
        while not self._stopping:
            try:
                # A new leader is asked at once: its high watermark may be stale.
                if attempt or dice.random() < 0.5:
                    await self.fetcher.latest()
                await self.fetcher.fetch(dice.randint(1, 300), dice.choice([200, 1000, 1 << 20]))
                attempt = 0
            except (Disconnected, Refused) as failed:
                if isinstance(failed, Refused) and not failed.retriable:
                    self._history.expect_nothing_of(f"{self.session.name}: {failed}")
                self.session.forget()
                await self.session.pause(attempt)
                attempt += 1
            await asyncio.sleep(dice.uniform(0, 2 * pause_s))
        await self.session.close()


async def read_to_end(
    session: ClientSession, history: History, place: TopicPartition, *, committed_only: bool
) -> None:
    """Note the contents of a partition, up to the high watermark or last stable offset."""
    # What the last reader sees is compared with all other readings, so it is none of them.
    fetcher = Fetcher(session, History(), place, committed_only=committed_only)
    entries: list[Entry] = []

    async def read_more() -> bool:
        entries.extend(await fetcher.fetch(max_wait_ms=1))
        return fetcher.position >= fetcher.high_watermark

    give_up_at = session.now + 60
    while not await session.persistently(read_more, give_up_at):
        assert session.now < give_up_at, (
            f"{place}: the last stable offset is {fetcher.last_stable_offset}, "
            f"the high watermark {fetcher.high_watermark}"
        )
    history.find(place, fetcher.log_start, fetcher.position, entries, committed_only=committed_only)
