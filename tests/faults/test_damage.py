"""A log that is damaged at run time loses the damaged records and nothing else."""

import errno
import os
import time

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.broker.handlers import fetch
from headrace.client.errors import Disconnected
from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker, BrokerFailed
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.world.files import SystemFiles
from tests.fakes.raw_client import RawClient

SMALL_SEGMENTS = {"internal.segment.bytes": "2000"}  # no index entry within one


def one_record(size=100):
    return build_batch([Record(0, int(time.time() * 1000), b"key", bytes(size))])


LARGE = 300_000  # goes by sendfile


def make_damaged_topic(broker, **settings):
    """A topic with many segments, the second one overwritten; returns its first offset."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("orders", 1, config=SMALL_SEGMENTS | settings)
    admin.create_topics([topic])["orders"].result()
    with RawClient(broker.bootstrap_servers) as client:
        for _ in range(60):
            client.produce("orders", one_record())
    log_files = sorted((broker.data / "orders-0").glob("*.log"))
    assert len(log_files) > 3
    damaged = log_files[1]
    damaged.write_bytes(b"\xff" * damaged.stat().st_size)
    for suffix in (".index", ".timeindex"):
        damaged.with_suffix(suffix).write_bytes(b"no index")
    return int(damaged.stem)


def list_offset(client, timestamp):
    request = m.ListOffsetsRequest
    asked = request.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    topic = request.ListOffsetsTopic(name="orders", partitions=[asked])
    answer = client.ask(ApiKey.LIST_OFFSETS, 7, request(replica_id=-1, topics=[topic]))
    return answer.topics[0].partitions[0]


def test_a_fetch_of_damaged_records_fails_and_all_others_are_served():
    with Broker() as broker:
        damaged_offset = make_damaged_topic(broker)
        with RawClient(broker.bootstrap_servers) as client:
            assert client.fetch("orders", 0).error_code == ErrorCode.NONE
            assert (
                client.fetch("orders", damaged_offset + 1).error_code == ErrorCode.CORRUPT_MESSAGE
            )
            assert client.fetch("orders", 59).error_code == ErrorCode.NONE
            assert client.produce("orders", one_record()).base_offset == 60


def unreadable_sector(*_):
    raise OSError(errno.EIO, "input/output error")


def without_probes(monkeypatch):
    monkeypatch.setattr(SystemFiles, "read_now", lambda *_: None)


def nothing_is_resident(monkeypatch):
    monkeypatch.setattr(fetch, "is_resident", lambda file_slice: False)
    monkeypatch.setattr(fetch, "read_resident", lambda file_slice: None)


@pytest.mark.parametrize("size", [100, LARGE])
def test_an_unreadable_sector_takes_its_disk_offline_and_not_the_broker(size, monkeypatch):
    with Broker(topics=["orders"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.produce("orders", one_record(size))
        nothing_is_resident(monkeypatch)
        monkeypatch.setattr(SystemFiles, "pread", staticmethod(unreadable_sector))
        for _ in range(2):
            assert client.fetch("orders", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.metadata("orders").brokers


def test_an_unreadable_sector_is_found_without_page_cache_probes(monkeypatch):
    without_probes(monkeypatch)
    with Broker(topics=["orders"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.produce("orders", one_record())
        assert bytes(client.fetch("orders", 0).records).endswith(bytes(100) + b"\0")
        monkeypatch.setattr(SystemFiles, "pread", staticmethod(unreadable_sector))
        assert client.fetch("orders", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("can_ask", [False, True])
def test_a_truncated_file_gives_a_response_of_its_own_size(can_ask, monkeypatch):
    if not can_ask:
        without_probes(monkeypatch)
    with Broker(topics=["orders"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.produce("orders", one_record())
        (log,) = (broker.data / "orders-0").glob("*.log")
        os.truncate(log, 50)
        assert len(client.fetch("orders", 0).records) == 50
        assert client.metadata("orders").brokers


@pytest.mark.parametrize(("size", "reader"), [(100, "read"), (LARGE, "warm")])
def test_a_sector_that_fails_a_probe_is_found_by_the_read_that_follows(size, reader, monkeypatch):
    read = getattr(fetch, reader)
    with Broker(topics=["orders"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.produce("orders", one_record(size))
        monkeypatch.setattr(os, "preadv", unreadable_sector)
        asked = []

        def noted(file_slice):
            asked.append(file_slice)
            return read(file_slice)

        monkeypatch.setattr(fetch, reader, noted)
        for _ in range(2):
            assert len(client.fetch("orders", 0).records) > size
        assert len(asked) == 2


@pytest.mark.parametrize("said", [errno.EOPNOTSUPP, errno.EAGAIN])
def test_a_range_that_the_kernel_does_not_have_is_read_anyway(said, monkeypatch):
    asked = []

    def says(*arguments):
        asked.append(arguments)
        raise OSError(said, "not now")

    with Broker(topics=["orders"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.produce("orders", one_record())
        monkeypatch.setattr(os, "preadv", says)
        for _ in range(2):
            assert bytes(client.fetch("orders", 0).records).endswith(bytes(100) + b"\0")
        assert len(asked) == (2 if said == errno.EAGAIN else 1), "no use to ask again"


def test_a_bug_while_a_range_is_read_in_a_thread_closes_one_connection(monkeypatch):
    with pytest.raises(BrokerFailed, match="a bug"), Broker(topics=["orders"]) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.produce("orders", one_record())
            nothing_is_resident(monkeypatch)
            monkeypatch.setattr(fetch, "read", a_bug)
            assert client.fetch("orders", 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert client.is_closed_by_broker()
        with RawClient(broker.bootstrap_servers) as other:
            assert other.produce("orders", one_record()).base_offset == 1


def a_bug(*_):
    raise ZeroDivisionError("a bug")


def test_a_sector_that_cannot_be_sent_takes_its_disk_offline_alone(tmp_path, monkeypatch):
    large = build_batch([Record(0, -1, None, bytes(LARGE))])
    folders = tmp_path / "a", tmp_path / "b"
    config = {"log.dirs": ",".join(map(str, folders))}
    with Broker(config=config, data=folders[0], topics={"orders": 2}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            for partition in (0, 1):
                assert client.produce("orders", large, partition=partition).error_code == 0
        bad_folder = next(folder for folder in folders if (folder / "orders-0").exists())
        send = os.sendfile

        def sendfile(out, source, *rest):
            if os.readlink(f"/proc/self/fd/{source}").startswith(str(bad_folder)):
                unreadable_sector()
            return send(out, source, *rest)

        monkeypatch.setattr(os, "sendfile", sendfile)
        with RawClient(broker.bootstrap_servers) as client, pytest.raises(Disconnected):
            client.fetch("orders", 0)
        with RawClient(broker.bootstrap_servers) as client:
            answer = client.fetch("orders", 0)
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            answer = client.produce("orders", one_record())
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert len(client.fetch("orders", 0, partition=1).records) == len(large)


def test_a_timestamp_lookup_in_damaged_records_reports_the_damage():
    with Broker() as broker:
        make_damaged_topic(broker)
        broker.restart()  # so that the segments are known only by their files
        with RawClient(broker.bootstrap_servers) as client:
            late = int(time.time() * 1000) + 1000
            assert list_offset(client, late).error_code == ErrorCode.CORRUPT_MESSAGE
            assert list_offset(client, -1).offset == 60


def test_a_client_of_0_8_gets_the_segment_bases_despite_damage():
    with Broker() as broker:
        damaged_offset = make_damaged_topic(broker)
        broker.restart()
        request = m.ListOffsetsRequest
        asked = request.ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=99)
        topic = request.ListOffsetsTopic(name="orders", partitions=[asked])
        with RawClient(broker.bootstrap_servers) as client:
            answer = client.ask(ApiKey.LIST_OFFSETS, 0, request(replica_id=-1, topics=[topic]))
        offsets = answer.topics[0].partitions[0].old_style_offsets
        assert offsets == sorted(offsets, reverse=True)
        assert (offsets[0], offsets[-2:]) == (60, [damaged_offset, 0])


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_retention_and_compaction_skip_a_damaged_log(policy):
    config = {"log.retention.check.interval.ms": 20, "log.cleaner.backoff.ms": 20}
    with Broker(config=config) as broker:
        make_damaged_topic(
            broker, **{"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0.001"}
        )
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            for _ in range(20):  # each after some rounds of the periodic tasks
                assert client.produce("orders", one_record()).error_code == ErrorCode.NONE
                client.fetch("orders", client.fetch("orders", 0).high_watermark, max_wait_ms=30)
