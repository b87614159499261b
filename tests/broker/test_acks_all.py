"""acks=all waits for every in-sync replica and requires min.insync.replicas of them.

On one node nothing waits, so these tests give a partition a follower that has no records yet.
"""

import select

import pytest

from headrace.broker.handlers.produced import Produced
from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

BATCH = build_batch([Record(0, -1, b"key", b"value")])


class Partition:
    """Partition t-0 of a running broker."""

    def __init__(self, broker):
        self._inside = Inside(broker)

    def in_sync(self, *broker_ids, of=(1, 2), needed=1, leader=1):
        self._inside.in_sync("t", isr=broker_ids, replicas=of, min_isr=needed, leader=leader)

    def wait_until_one_waits(self):
        waiting = self._inside.services.waiting
        wait_until(lambda: any(isinstance(waiter, Produced) for waiter in waiting.all()))

    def delete_while_one_waits(self):
        self.wait_until_one_waits()
        self._inside.run(self._inside.services.controller.delete_topics(["t"]))

    def fail_disk_while_one_waits(self):
        self.wait_until_one_waits()
        self._inside.services.logs.directories[0].take_offline("it broke")


@pytest.fixture
def node():
    with Broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        yield Partition(broker), client


@pytest.mark.parametrize("is_first", [True, False], ids=["decoded", "of a known shape"])
def test_the_response_waits_until_every_in_sync_replica_has_the_batch(node, is_first):
    partition, client = node
    if not is_first:
        client.produce("t", BATCH)
    before = client.fetch("t", 0).high_watermark
    partition.in_sync(1, 2)
    client.produce("t", BATCH, answer=False)
    assert select.select([client.sock], [], [], 0.1)[0] == []
    partition.in_sync(1)
    (topic,) = client.answer(ApiKey.PRODUCE, 9).responses
    (answer,) = topic.partition_responses
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, before)
    assert client.fetch("t", 0).high_watermark == before + 1


@pytest.mark.parametrize("is_first", [True, False], ids=["decoded", "of a known shape"])
def test_a_batch_whose_topic_is_deleted_meanwhile_is_not_acknowledged(node, is_first):
    partition, client = node
    if not is_first:
        client.produce("t", BATCH)
    partition.in_sync(1, 2)
    client.produce("t", BATCH, answer=False)
    partition.delete_while_one_waits()
    (topic,) = client.answer(ApiKey.PRODUCE, 9).responses
    (answer,) = topic.partition_responses
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def produced(client):
    (topic,) = client.answer(ApiKey.PRODUCE, 9).responses
    (answer,) = topic.partition_responses
    return answer.error_code, answer.base_offset


def test_a_batch_whose_leader_is_replaced_is_refused_at_once(node):
    partition, client = node
    partition.in_sync(1, 2)
    client.produce("t", BATCH, answer=False)
    partition.wait_until_one_waits()
    partition.in_sync(1, 2, leader=2)
    assert produced(client) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_batch_whose_disk_fails_is_refused_at_once(node):
    partition, client = node
    partition.in_sync(1, 2)
    client.produce("t", BATCH, answer=False)
    partition.fail_disk_while_one_waits()
    assert produced(client) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_a_batch_keeps_waiting_if_the_leader_stays_in_a_new_epoch(node):
    partition, client = node
    partition.in_sync(1, 2)
    client.produce("t", BATCH, answer=False)
    partition.wait_until_one_waits()
    partition.in_sync(1, 2)
    assert select.select([client.sock], [], [], 0.1)[0] == []
    partition.in_sync(1)
    assert produced(client) == (ErrorCode.NONE, 0)


def test_a_batch_that_waits_too_long_is_refused_and_stays_in_the_log(node):
    partition, client = node
    partition.in_sync(1, 2)
    request = m.ProduceRequest
    data = request.PartitionProduceData(index=0, records=BATCH)
    topics = [request.TopicProduceData(name="t", partition_data=[data])]
    asked = request(acks=-1, timeout_ms=20, topic_data=topics)
    (topic,) = client.ask(ApiKey.PRODUCE, 9, asked).responses
    assert topic.partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert client.fetch("t", 0).high_watermark == 0
    partition.in_sync(1)
    assert client.fetch("t", 0).high_watermark == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["decoded", "of a known shape"])
def test_with_too_few_replicas_acks_all_is_refused_and_acks_1_is_not_committed(node, is_first):
    partition, client = node
    if not is_first:
        client.produce("t", BATCH)
    before = client.fetch("t", 0).high_watermark
    partition.in_sync(1, needed=2)
    assert client.produce("t", BATCH).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert client.produce("t", BATCH, acks=1).base_offset == before
    assert client.fetch("t", 0).high_watermark == before


def test_a_minimum_above_the_number_of_replicas_requires_all_of_them(node):
    partition, client = node
    partition.in_sync(1, of=(1,), needed=3)
    assert client.produce("t", BATCH).error_code == ErrorCode.NONE
