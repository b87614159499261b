"""Headrace opens log directories of Apache Kafka 4.3.1 and leaves them as Kafka would.

``clean`` was copied after a clean shutdown, ``live`` from the running broker shortly before: its
indexes are preallocated and its checkpoints old, as after a kill. Kafka wrote batches of every
codec, and committed, aborted and open transactions.
"""

import shutil
from pathlib import Path

import pytest

from headrace.model.ids import TopicPartition, id_to_text
from headrace.records.batch import headers
from headrace.storage.time_lookup import first_at, largest
from tests.fakes.logs import Disk, append, batch, read_all, read_bytes, settings

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1-logs"
STOPPED_AT = 1794782238418
PLAIN, TXN, APPEND_TIME = (TopicPartition(name, 0) for name in ("plain", "txn", "appendtime"))


@pytest.fixture(params=["clean", "live"])
def disk(request, tmp_path):
    shutil.copytree(GOLDEN / request.param, tmp_path / "data")
    config = settings(index_interval_bytes=200, segment_index_bytes=2000)
    disk = Disk(tmp_path / "data", config=config, now=STOPPED_AT)
    yield disk
    disk.crash()


def test_the_records_of_every_codec_are_read(disk):
    values = [value for _, value in read_all(disk.log(PLAIN))]
    assert values == [
        b"%b-%d-%d-%b" % (codec, batch, i, b"x" * 20)
        for codec in (b"none", b"gzip", b"snappy", b"lz4", b"zstd")
        for batch in range(3)
        for i in range(10)
    ]
    codecs = [header.codec for _, header in headers(read_bytes(disk.log(PLAIN), 0))]
    assert codecs == [codec for codec in range(5) for _ in range(3)]


def test_the_owner_is_recognized(disk):
    assert disk.logs.directories.cluster_id == "MkU3OEVBNTcwNTJENDM2Qk"
    assert id_to_text(disk.log(TXN).topic_id) == "YKGKiwvIQJ2nFRjBQ8ak6g"
    assert disk.log(TXN).leader_epochs.entries == [(0, 0)]


def test_timestamps_are_found(disk):
    assert first_at(disk.log(PLAIN), 1700000002105)()[:2] == (75, 1700000002105)
    assert largest(disk.log(PLAIN))()[:2] == (149, 1700000004209)
    append_times = [h.log_append_time for _, h in headers(read_bytes(disk.log(APPEND_TIME), 0))]
    assert append_times == [True] * 3


def test_transactions_are_as_kafka_left_them(disk):
    """From Kafka's own dump of the snapshot and the transaction indexes."""
    log = disk.log(TXN)
    assert log.log_end == 98
    assert log.last_stable_offset(98) == 95
    assert log.aborted_transactions(0, 98) == [
        (6, 5), (5, 14), (5, 32), (5, 50), (5, 68), (7, 9), (5, 90),
    ]  # fmt: skip
    last = {
        producer_id: (entry.last_sequence, entry.last_timestamp, entry.transaction_start)
        for producer_id, entry in log.producers.entries.items()
    }
    assert last == {
        5: (68, 1794782238418, -1),
        6: (5, 1794782238409, -1),
        7: (5, 1700000000002, 95),
    }


def test_a_producer_continues_where_kafka_stopped(disk):
    log = disk.log(TXN)
    again = append(log, batch(b"1", b"2", b"3", producer_id=7, base_sequence=3, transactional=True))
    assert (again.base_offset, again.first_of_duplicate) == (95, True)
    assert append(log, batch(b"x", producer_id=7, base_sequence=6, transactional=True)).base_offset


def test_a_clean_shutdown_leaves_the_same_files_as_kafka(disk):
    disk.logs.directories.losses_reported()  # as a broker that leads them does
    disk.stop()
    left = {
        path.relative_to(disk.paths[0]): path.read_bytes() for path in disk.paths[0].glob("*-0/*")
    }
    for path in (GOLDEN / "clean").glob("*-0/*"):
        name = path.relative_to(GOLDEN / "clean")
        if name.parts[0] != "empty-0":  # not in ``live``
            assert left[name] == path.read_bytes(), name
    assert (disk.paths[0] / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'


def test_high_watermarks_are_restored(disk):
    expected = {"plain": 150, "txn": 98, "appendtime": 3}
    if not disk.logs.directories[0].clean_start:
        expected = {"plain": 30, "txn": 0, "appendtime": 0}
    found = {
        log.topic_partition.topic: disk.logs.high_watermark(log.topic_partition)
        for log in disk.logs
        if log.topic_partition.topic != "empty"
    }
    assert found == expected
