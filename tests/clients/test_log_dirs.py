"""Partitions lie in several folders and move between them while they are written to."""

import threading

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.raw_client import RawClient


def describe(raw):
    response = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, m.DescribeLogDirsRequest(topics=None))
    return {
        result.log_dir: {
            f"{topic.name}-{p.partition_index}": p.partition_size
            for topic in result.topics
            for p in topic.partitions
        }
        for result in response.results
    }


def move(raw, folder, topic, partition=0):
    request = m.AlterReplicaLogDirsRequest
    response = raw.ask(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        request(
            dirs=[
                request.AlterReplicaLogDir(
                    path=str(folder),
                    topics=[request.AlterReplicaLogDirTopic(name=topic, partitions=[partition])],
                )
            ]
        ),
    )
    return response.results[0].partitions[0].error_code


def test_new_partitions_go_where_the_fewest_are(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    config = {"log.dirs": ",".join(map(str, folders))}
    with (
        Broker(config=config, data=tmp_path, topics={"t": 6}) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        described = describe(raw)
        assert {path: len(held) for path, held in described.items()} == {
            str(folder): 3 for folder in folders
        }


def test_a_partition_moves_under_load_and_nothing_is_lost(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    config = {"log.dirs": ",".join(map(str, folders)), "log.index.interval.bytes": 100}
    with Broker(config=config, data=tmp_path, topics={"t": 1}) as broker:
        over = threading.Event()
        sent = []
        failures = []

        def load():
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})
            while not over.is_set():
                # Waits for room: this loop outruns any broker, and a full queue raises.
                while len(producer) > 10_000:
                    producer.poll(0.1)
                producer.produce(
                    "t",
                    b"%d" % len(sent),
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                sent.append(1)
                producer.poll(0)
            assert producer.flush(60) == 0

        thread = threading.Thread(target=load)
        thread.start()
        with RawClient(broker.bootstrap_servers) as raw:
            (here,) = [path for path, held in describe(raw).items() if "t-0" in held]
            (there,) = [str(folder) for folder in folders if str(folder) != here]
            for target in (there, here, there):
                assert move(raw, target, "t") == 0
                assert "t-0" in describe(raw)[target]
            over.set()
            thread.join()
            assert failures == []
            assert move(raw, tmp_path / "elsewhere", "t") == ErrorCode.LOG_DIR_NOT_FOUND
            assert move(raw, there, "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.restart()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        values = []
        while len(values) < len(sent):
            for record in consumer.consume(min(1000, len(sent) - len(values)), 20):
                values.append(int(record.value()))
        consumer.close()
        assert values == list(range(len(sent)))
        assert (tmp_path / there.rpartition("/")[2] / "t-0").exists()


def test_a_topics_level_is_what_the_broker_recompresses_with(tmp_path):
    values = b"".join(b"%d words, and %d more\n" % (n * n, n % 77) for n in range(5000))
    batch = build_batch([Record(0, -1, None, values)])
    with (
        Broker(data=tmp_path) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        sizes = {}
        for level in (1, 9):
            settings = {"compression.type": "gzip", "compression.gzip.level": str(level)}
            topic = f"level-{level}"
            admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result()
            assert raw.produce(topic, batch).error_code == 0
            sizes[level] = sum(held.get(f"{topic}-0", 0) for held in describe(raw).values())
        assert 0 < sizes[9] < sizes[1] < len(batch)
