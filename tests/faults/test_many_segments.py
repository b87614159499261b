"""Periodic tasks on logs with many segments: the loop reads no files, and all that expire go."""

import threading
import time

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.broker import periodic
from headrace.records.record import Record, build_batch
from headrace.storage import log_retention
from headrace.storage.segment_indexes import SegmentIndexes
from headrace.testing import Broker
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

OFTEN = {"log.retention.check.interval.ms": 20, "log.cleaner.backoff.ms": 20}
SEGMENT_COUNT = 12


def make_topic(broker, **settings):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("orders", 1, config={"internal.segment.bytes": "200", **settings})
    admin.create_topics([topic])["orders"].result()
    with RawClient(broker.bootstrap_servers) as client:
        for _ in range(SEGMENT_COUNT):
            record = Record(0, int(time.time() * 1000), b"key", b"x" * 100)
            assert client.produce("orders", build_batch([record])).error_code == 0


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_the_times_of_segments_are_not_read_on_the_loop(policy, monkeypatch):
    threads = {}
    read = SegmentIndexes.read_last_time

    def read_last_time(indexes):
        found = read(indexes)
        if "orders" in indexes.path:
            threads[indexes.path] = threading.current_thread().name
        return found

    with Broker(config=OFTEN) as broker:
        make_topic(broker, **{"cleanup.policy": policy, "min.cleanable.dirty.ratio": "1"})
        monkeypatch.setattr(SegmentIndexes, "read_last_time", read_last_time)
        broker.restart()
        wait_until(lambda: len(threads) == SEGMENT_COUNT - 1)
    assert "headrace-broker" not in threads.values()


def test_one_round_of_retention_deletes_all_expired_segments(monkeypatch):
    for module in (log_retention, periodic):
        monkeypatch.setattr(module, "DELETED_AT_ONCE_MAX", 5)
    with Broker(config=OFTEN | {"log.retention.check.interval.ms": 500}) as broker:
        make_topic(broker)
        rounds = []
        apply = log_retention.apply_retention

        def apply_retention(log, *arguments):
            expiry = apply(log, *arguments)
            if expiry.segment_count:
                rounds.append(expiry.segment_count)
            return expiry

        monkeypatch.setattr(periodic, "apply_retention", apply_retention)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        with RawClient(broker.bootstrap_servers) as client:
            delete_records(admin)
            wait_until(lambda: len(list((broker.data / "orders-0").glob("*.log"))) == 1)
            assert client.fetch("orders", SEGMENT_COUNT - 1).log_start_offset == SEGMENT_COUNT - 1
    assert rounds == [11, 6, 1]


def delete_records(admin):
    from confluent_kafka import TopicPartition

    (future,) = admin.delete_records([TopicPartition("orders", 0, SEGMENT_COUNT - 1)]).values()
    future.result()
