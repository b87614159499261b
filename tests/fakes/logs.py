"""Logs in a temporary directory, batches for them, and a worker that runs on demand."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from headrace.model.config import BrokerConfig, TopicConfig, topic_config
from headrace.model.ids import LeaderEpoch, Millis, Offset, TopicId, TopicPartition
from headrace.records.batch import headers, read_header
from headrace.records.record import Record, build_batch, build_marker, iter_records
from headrace.storage import page_cache
from headrace.storage.log import CLIENT, COORDINATOR, Appended, Log
from headrace.storage.log_manager import LogManager
from headrace.world.world import World
from tests.fakes.faulty_files import FaultyFiles

NOW = Millis(1_700_000_000_000)
ORDERS = TopicPartition("orders", 0)
ORDERS_ID = TopicId(bytes(range(16)))
LEADER_EPOCH = LeaderEpoch(0)
_DEFAULTS = topic_config(BrokerConfig.parse({}), {})


def settings(**overrides: Any) -> TopicConfig:
    """Kafka's defaults with some topic settings changed, without their lower limits."""
    return _DEFAULTS._replace(**overrides)


class HandWorker:
    """Runs background jobs on demand, so that a test sees the state before and after."""

    def __init__(self) -> None:
        self.jobs: list[tuple[int, Callable[[], None]]] = []

    def later(self, delay_ms: int, job: Callable[[], None]) -> None:
        self.jobs.append((delay_ms, job))

    def run(self) -> None:
        while self.jobs:
            self.jobs.pop(0)[1]()


class StoredWorld(World):
    """A clock that the test sets, and files that it can make fail."""

    def __init__(self) -> None:
        super().__init__()
        self.time = NOW
        self.files: FaultyFiles = FaultyFiles()

    def now(self) -> Millis:
        return self.time


class Disk:
    """One broker's log directories; after ``stop`` or ``crash``, ``start`` opens them again."""

    def __init__(
        self,
        *paths: Path,
        config: TopicConfig | None = None,
        now: Millis = NOW,
        **options: Any,
    ) -> None:
        self.paths = paths
        self.world = StoredWorld()
        self.files = self.world.files
        self.config = config or settings()
        self.options = options
        self.worker = HandWorker()
        self.logs = self.start(now)

    def start(self, now: Millis = NOW, deleted_ids: Collection[TopicId] = ()) -> LogManager:
        self.worker = HandWorker()
        options: dict[str, Any] = {"node_id": 1, **self.options}
        self.logs = LogManager(
            self.paths,
            world=self.world,
            config_of=lambda topic: self.config,
            later=self.worker.later,
            **options,
        )
        self.logs.open_all(now, deleted_ids)
        return self.logs

    def stop(self) -> None:
        self.worker.run()
        self.logs.close_clean({log.topic_partition: log.log_end for log in self.logs})

    def crash(self) -> None:
        self.worker.jobs.clear()
        self.logs.abandon()

    def log(self, topic_partition: TopicPartition = ORDERS) -> Log:
        """The log, created on first use."""
        found = self.logs.get(topic_partition)
        return found or self.logs.create(topic_partition, ORDERS_ID, self.config, now=NOW)

    def restarted(self, *, clean: bool = True, now: Millis = NOW) -> Log:
        if clean:
            self.stop()
        else:
            self.crash()
        self.start(now)
        return self.log()


def batch(
    *values: bytes,
    timestamp: int = NOW,
    producer_id: int = -1,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    transactional: bool = False,
    codec: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """A batch of one record per value, writable as in a receive buffer."""
    idempotent = producer_id >= 0
    raw = build_batch(
        [Record(base_offset + i, timestamp, None, value) for i, value in enumerate(values)],
        base_offset=base_offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch if idempotent else -1,
        base_sequence=base_sequence if idempotent else -1,
        transactional=transactional,
        leader_epoch=leader_epoch,
    )
    return memoryview(bytearray(raw))


def marker(
    *, commit: bool, producer_id: int, producer_epoch: int = 0, coordinator_epoch: int = 0
) -> memoryview:
    raw = build_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=NOW,
    )
    return memoryview(bytearray(raw))


def append(
    log: Log, *batches: memoryview, now: Millis = NOW, leader_epoch: LeaderEpoch = LEADER_EPOCH
) -> Appended:
    """Stage and write; returns where the last batch is stored."""
    for each in batches:
        control = read_header(each).is_control
        appended = log.append_as_leader(
            each, leader_epoch, now, origin=COORDINATOR if control else CLIENT
        )
    log.write_staged()
    return appended


def fill(log: Log, values: Iterable[bytes], **options: Any) -> None:
    """One batch per value."""
    for value in values:
        append(log, batch(value, **options))


def three_segments(log: Log) -> None:
    """Two records each, a second apart, and an empty active segment."""
    for timestamp in (0, 1000, 2000):
        append(log, batch(b"a" * 100, timestamp=NOW + timestamp))
        append(log, batch(b"b" * 100, timestamp=NOW + timestamp))
        log.roll(NOW)


def segment_names(log: Log) -> list[int]:
    return sorted(int(path.stem) for path in log.path.glob("*.log"))


def read_bytes(log: Log, fetch_offset: int, max_bytes: int = 1 << 20, end: int = 1 << 62) -> bytes:
    found = log.read(Offset(fetch_offset), max_bytes, Offset(end))
    if found is None:
        return b""
    data = page_cache.read(found)
    assert len(data) == found.size
    return data


def read_all(log: Log, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """Every record from the log start on, as a consumer fetches them: (offset, value)."""
    records = []
    next_offset: int = log.log_start
    while data := read_bytes(log, next_offset, max_bytes):
        whole = 0
        for position, header in headers(data):
            whole = position + header.size
            for record in iter_records(memoryview(data)[position:whole]):
                if record.offset >= next_offset:
                    records.append((record.offset, record.value))
            next_offset = header.next_offset
        assert whole == len(data), "a fetch ends with a whole batch"
    return records
