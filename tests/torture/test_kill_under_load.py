"""kill -9 under load: every acknowledged record exists once and in order."""

import random
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Broker

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

PARTITIONS = 3


class Load:
    """An idempotent producer that records its acknowledged records and their offsets."""

    def __init__(self, bootstrap_servers, name):
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.name = name
        self.acknowledged = {}  # value -> (partition, offset)
        self.failures = []
        self.sent = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.over.is_set():
            value = b"%s-%d" % (self.name, self.sent)
            try:
                self.producer.produce(
                    "load", value, partition=self.sent % PARTITIONS, on_delivery=self._delivered
                )
                self.sent += 1
            except BufferError:
                self.producer.poll(0.05)
            self.producer.poll(0)
        if self.producer.flush(120):
            self.failures.append("records are still waiting")

    def _delivered(self, error, record):
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[record.value()] = (record.partition(), record.offset())


def read_all(bootstrap_servers):
    """Every record by partition, in the order of offsets."""
    found = {}
    for partition in range(PARTITIONS):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "check.crcs": True}
        )
        start, end = consumer.get_watermark_offsets(TopicPartition("load", partition), timeout=30)
        consumer.assign([TopicPartition("load", partition, start)])
        values = []
        while len(values) < end - start:
            left = end - start - len(values)
            for record in consumer.consume(min(left, 10_000), timeout=20):
                assert record.error() is None
                assert record.offset() == start + len(values)
                values.append(record.value())
        consumer.close()
        found[partition] = values
    return found


def test_acknowledged_records_survive_kill_9_in_order_and_once(tmp_path, torture_rounds):
    rng = random.Random(11)
    settings = {"log.segment.bytes": 1 << 20, "log.index.interval.bytes": 512}
    with Broker(
        process=True, data=tmp_path, config=settings, topics={"load": PARTITIONS}
    ) as broker:
        loads = [Load(broker.bootstrap_servers, b"p%d" % number) for number in range(2)]
        for load in loads:
            load.thread.start()
        for _ in range(torture_rounds):
            time.sleep(rng.uniform(0.2, 1.0))  # the load runs for this time before the kill
            broker.kill()
            broker.start()
        time.sleep(0.3)
        for load in loads:
            load.over.set()
        for load in loads:
            load.thread.join()
        found = read_all(broker.bootstrap_servers)

    total = 0
    for load in loads:
        assert load.failures == []
        assert len(load.acknowledged) == load.sent
        total += load.sent
        for value, (partition, offset) in load.acknowledged.items():
            assert found[partition][offset] == value
    everything = [value for values in found.values() for value in values]
    assert len(everything) == len(set(everything)) == total
    for values in found.values():
        for load in loads:
            mine = [int(v.rpartition(b"-")[2]) for v in values if v.startswith(load.name)]
            assert mine == sorted(mine)
    print(f"{torture_rounds} kills, {total} records: none lost, no duplicates, all in order")
