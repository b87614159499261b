"""``flush.messages=1``: acknowledged means on the platter, whoever else writes."""

import errno
import os
import select
import threading

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire.api import ApiKey
from tests.fakes.raw_client import RawClient


def one_record():
    return build_batch([Record(0, -1, b"key", b"value")])


@pytest.fixture
def broker():
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        made = admin.create_topics([NewTopic("orders", 1, config={"flush.messages": "1"})])
        made["orders"].result()
        yield broker


def test_nobody_is_acknowledged_before_the_fsync_that_others_wait_for_too(broker, monkeypatch):
    may_end = threading.Event()
    fsync = os.fsync

    def slow_fsync(fd):
        assert may_end.wait(20)
        fsync(fd)

    with (
        RawClient(broker.bootstrap_servers) as one,
        RawClient(broker.bootstrap_servers) as other,
        RawClient(broker.bootstrap_servers) as reader,
    ):
        monkeypatch.setattr(os, "fsync", slow_fsync)
        one.produce("orders", one_record(), answer=False)
        assert reader.fetch("orders", 0, max_wait_ms=20_000).high_watermark == 1
        other.produce("orders", one_record(), answer=False)
        assert reader.fetch("orders", 1, max_wait_ms=20_000).high_watermark == 2
        assert select.select([one.sock, other.sock], [], [], 0.1)[0] == []
        may_end.set()
        for client in (one, other):
            answer = client.answer(ApiKey.PRODUCE, 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_two_writers_of_one_moment_wait_for_the_same_fsync(broker, monkeypatch):
    # Both turns come before the flush begins, so only one of them starts it.
    may_end = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (may_end.wait(20), fsync(fd))[1])
    clients = [RawClient(broker.bootstrap_servers) for _ in range(8)]
    try:
        for client in clients:
            client.produce("orders", one_record(), answer=False)
        with RawClient(broker.bootstrap_servers) as reader:
            assert reader.fetch("orders", 7, max_wait_ms=20_000).high_watermark == 8
        assert select.select([client.sock for client in clients], [], [], 0.1)[0] == []
        may_end.set()
        for client in clients:
            client.answer(ApiKey.PRODUCE, 9)
    finally:
        may_end.set()
        for client in clients:
            client.sock.close()


def test_a_failing_fsync_is_told_to_whoever_waits_for_it(broker, monkeypatch):
    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    with RawClient(broker.bootstrap_servers) as client:
        monkeypatch.setattr(os, "fsync", fail)
        refused = client.produce("orders", one_record())
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
