"""Sends generated records to topics: a whole day as fast as possible, or live at a given rate.

What the brokers acknowledged is published for the audit.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from headrace.arrow.encoding import EncodedBatch, Outgoing, encode
from headrace.arrow.partitioning import partitions_by_key
from headrace.client.cluster import ClientSettings
from headrace.model.audit import AUDIT_TOPIC, AUDIT_TOPIC_CONFIGS, MINUTE_MS, MinuteCounts
from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.generate.block import Block, Piece, make_block, make_day
from headrace.pipeline.generate.faults import Count
from headrace.pipeline.generate.machines import Outage
from headrace.pipeline.generate.site import Site, make_site
from headrace.records.batch import LZ4
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, new_identity

EVENTS, MEMBERS, PARTITIONS, SEED = 500_000, 5_000, 2, 1
EVENTS_MIN, MEMBERS_MIN = 1_000, 100
# A day may be long ago, or tomorrow.
_TOPIC_SETTINGS: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
    "message.timestamp.after.max.ms": str((1 << 63) - 1),
    "retention.ms": "-1",
}
_BATCH_SIZE = 900_000
_RECORD_SIZE_MAX = 1 << 20
# Live events are drawn for this many records at a time, and sent at this interval.
_BLOCK_RECORDS = 500_000
_BLOCK_S_MIN, _BLOCK_S_MAX = 20, 600
_INTERVAL_S = 0.1
_AUDIT_INTERVAL_S = 5.0
# How long a generator that was stopped waits for brokers that do not answer.
_STOP_PATIENCE_S = 2.0

Progress = Callable[[int], None]  # gets the number of records sent


class Generated(NamedTuple):
    """What was sent, to check jobs and audits against."""

    topics: dict[str, Count]
    outages: list[Outage]
    bots: dict[str, list[str]]  # clients by kind

    @property
    def sent(self) -> int:
        return sum(count.sent for count in self.topics.values())


def generate_day(
    cluster: Cluster | str,
    day: date,
    *,
    events: int = EVENTS,
    seed: int = SEED,
    members: int = MEMBERS,
    partitions: int = PARTITIONS,
    broken: bool = True,
    progress: Progress = lambda _: None,
) -> Generated:
    """Send the events of a day. The same arguments send the same records.

    ``cluster`` is a client or a bootstrap address. Creates topics that are missing.
    """
    site = make_site(seed, members)
    block = make_day(site, day, events, seed, broken=broken)
    with _Sending(cluster, partitions) as sending:
        for pieces in block.pieces():
            sending.send(pieces)
            progress(sending.sent)
        sending.flush()
        return Generated(sending.counts, block.outages, bots_of(site))


def generate_live(
    cluster: Cluster | str,
    rate: float,
    stop: threading.Event,
    *,
    events: int | None = None,
    seed: int = SEED,
    members: int = MEMBERS,
    partitions: int = PARTITIONS,
    broken: bool = True,
    progress: Progress = lambda _: None,
) -> Generated:
    """Send events that happen now, ``rate`` per second, until ``stop`` is set or all are sent.

    Raises PipelineError if the brokers do not acknowledge the last ones soon after ``stop``.
    """
    site = make_site(seed, members)
    length_s = min(max(_BLOCK_RECORDS / rate, _BLOCK_S_MIN), _BLOCK_S_MAX)
    length_ms = int(max(length_s, EVENTS_MIN / rate) * 1000)
    count = round(rate * length_ms / 1000)

    def drawn(start_ms: int) -> Block:
        return make_block(site, start_ms, length_ms, count, seed, broken=broken)

    outages: list[Outage] = []
    with _Sending(cluster, partitions, stop) as sending, ThreadPoolExecutor(1) as pool:
        start_ms = time.time_ns() // 1_000_000
        following = pool.submit(drawn, start_ms)
        while not stop.is_set():
            block = following.result()
            following = pool.submit(drawn, start_ms + length_ms)
            outages += block.outages
            if _sent_in_time(block, start_ms, length_ms, sending, stop, events, progress):
                break
            start_ms += length_ms
        sending.flush()
        return Generated(sending.counts, outages, bots_of(site))


def _sent_in_time(
    block: Block,
    start_ms: int,
    length_ms: int,
    sending: "_Sending",
    stop: threading.Event,
    events: int | None,
    progress: Progress,
) -> bool:
    """Send each record when its time has come; True if enough were sent."""
    since_ms, end_ms = start_ms, start_ms + length_ms
    while since_ms < end_ms and not stop.wait(_INTERVAL_S):
        until_ms = min(time.time_ns() // 1_000_000, end_ms)
        sending.send(block.between(since_ms, until_ms))
        sending.wait()
        progress(sending.sent)
        if events is not None and sending.sent >= events:
            return True
        since_ms = max(since_ms, until_ms)
    return False


def bots_of(site: Site) -> dict[str, list[str]]:
    """The clients of bots, as in the events."""
    bots = site.bots
    clients = {
        "crawler": bots.crawlers,
        "scraper": bots.scrapers,
        "login guessing": bots.guessers,
        "spam": bots.spammers,
    }
    found = {
        kind: [text.strip('"') for text in site.clients.take(pa.array(codes)).to_pylist()]
        for kind, codes in clients.items()
    }
    found["over the API limit"] = [f"key-{number}" for number in bots.api_clients.tolist()]
    return found


class _Sending:
    """Encodes pieces and sends them; counts what was sent."""

    def __init__(
        self, cluster: Cluster | str, partitions: int, stop: threading.Event | None = None
    ) -> None:
        self._stop = stop
        self._stopped_at: float | None = None
        self._is_ours = isinstance(cluster, str)
        self._cluster = Cluster(ClientSettings(cluster)) if isinstance(cluster, str) else cluster
        self.counts = dict.fromkeys(SCHEMAS, Count())
        self.sent = 0
        self._audit = MinuteCounts("generate", uuid.uuid4().hex)
        self._published_at = time.monotonic()
        try:
            self._cluster.create_topics(list(SCHEMAS), partitions, _TOPIC_SETTINGS)
            self._cluster.create_topic(AUDIT_TOPIC, 1, AUDIT_TOPIC_CONFIGS)
            found = self._cluster.topics([*SCHEMAS, AUDIT_TOPIC])
            self._partition_count = {topic: len(found[topic].leaders) for topic in found}
            self._sender = BatchSender(
                self._cluster, new_identity(self._cluster), gives_up=self._gives_up
            )
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._sender.abandon()
        self._close()

    def _close(self) -> None:
        if self._is_ours:
            self._cluster.close()

    def _gives_up(self) -> bool:
        """Whether the brokers have not answered for long enough since the stop."""
        if self._stop is None or not self._stop.is_set():
            return False
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
        return now - self._stopped_at > _STOP_PATIENCE_S

    def send(self, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        self._sender.send(self._encoded(pieces))
        for piece in pieces:
            self.counts[piece.topic] = self.counts[piece.topic].plus(piece.counts)
            self.sent += piece.counts.sent
            minutes, counts = np.unique(piece.timestamp_ms // MINUTE_MS, return_counts=True)
            for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
                self._audit.add(piece.topic, minute * MINUTE_MS, count)
        if time.monotonic() - self._published_at > _AUDIT_INTERVAL_S:
            self.flush()

    def wait(self) -> None:
        """Wait for all acknowledgements. The sender sends no more to a broker before its answer."""
        self._sender.flush()

    def flush(self) -> None:
        """Wait for all acknowledgements, and publish their counts."""
        self._sender.flush()
        self._published_at = time.monotonic()
        message = self._audit.take()
        if message is not None:
            now_ms = np.array([time.time_ns() // 1_000_000])
            key, value = (pa.array([part], pa.binary()) for part in (message.key, message.value))
            self._sender.send(self._encoded([Piece(AUDIT_TOPIC, now_ms, key, value, Count())]))
            self._sender.flush()

    def _encoded(self, pieces: Sequence[Piece]) -> list[EncodedBatch]:
        sizes = [len(piece.value) for piece in pieces]
        rows = Outgoing(
            [piece.topic for piece in pieces],
            np.repeat(np.arange(len(pieces)), sizes),
            np.concatenate(
                [partitions_by_key(one.key, self._partition_count[one.topic]) for one in pieces]
            ),
            pa.concat_arrays([piece.key for piece in pieces]),
            pa.concat_arrays([piece.value for piece in pieces]),
            None,
            np.concatenate([piece.timestamp_ms for piece in pieces]),
        )
        return encode(
            rows,
            codec=LZ4,
            batch_size=_BATCH_SIZE,
            row_size_max=_RECORD_SIZE_MAX,
            now_ms=0,
            first_row=0,
        )
