"""Shared by the Spark tests: topics filled by a stock client, and collected rows."""

import itertools
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.pipeline.tables import Appended, BatchName, JobTable

JOBS = Path(__file__).parent / "jobs"

_numbers = itertools.count(1)
_RUN = uuid.uuid4().hex[:8]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60) -> None:
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {seconds} s for {what}"
        time.sleep(0.02)


class Topics:
    """Creates topics and fills them, with a stock client."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def name(self, readable: str = "topic") -> str:
        return f"pipe-{_RUN}-{next(_numbers)}-{readable}"

    def create(
        self,
        readable: str = "topic",
        partitions: int = 1,
        name: str = "",
        replicas: int = 1,
        **config: Any,
    ) -> str:
        from confluent_kafka.admin import NewTopic

        name = name or self.name(readable)
        # Tests use old timestamps; retention must not delete such records.
        settings = {"retention.ms": "-1"}
        settings |= {key.replace("_", "."): str(value) for key, value in config.items()}
        made = self.admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])
        made[name].result(30)
        wait_for(
            lambda: (
                name in self.admin.list_topics(timeout=10).topics
                and len(self.admin.list_topics(topic=name, timeout=10).topics[name].partitions)
                == partitions
            ),
            f"topic {name}",
        )
        return name

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)
        wait_for(lambda: name not in self.admin.list_topics(timeout=10).topics, f"no topic {name}")

    def add_partitions(self, name: str, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(name, total)])[name].result(30)
        wait_for(
            lambda: (
                len(self.admin.list_topics(topic=name, timeout=10).topics[name].partitions) == total
            ),
            f"{total} partitions of {name}",
        )

    def send(self, topic: str, values: Any, partition: int = 0, **more: Any) -> None:
        """Values are converted to text; a pair is key and value."""
        from confluent_kafka import Producer

        # A new producer each time: an old one may not know new partitions yet.
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})
        failures: list[Any] = []

        def sent(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            key = None
            if isinstance(value, tuple):
                key, value = value
            producer.produce(
                topic,
                value if isinstance(value, bytes | None) else str(value).encode(),
                key,
                partition=partition,
                on_delivery=sent,
                **more,
            )
        assert producer.flush(30) == 0
        assert not failures, failures

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition

        place = TopicPartition(topic, partition, before)
        for done in self.admin.delete_records([place]).values():
            done.result(30)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(30).topic_partitions
        return {p.partition: p.offset for p in found if p.topic == topic}

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """All messages that a stock consumer sees now."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{topic}-reader",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            found, ended = [], set()
            give_up_at = time.monotonic() + 60
            while len(ended) < len(partitions):
                assert time.monotonic() < give_up_at, f"{topic} did not end"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error():
                    ended.add(message.partition())
                else:
                    found.append(message)
            return found
        finally:
            consumer.close()


def run_where_read(master: str, topics: Topics, directory: Path) -> Any:
    """Run the job on a topic of 1,000 rows, check its copies, and return its output."""
    source = topics.create("clustered", 2)
    targets = [topics.create(name=f"{source}-{end}", partitions=2) for end in ("copy", "streamed")]
    for partition in range(2):
        topics.send(source, range(500), partition)
    done = subprocess.run(
        [sys.executable, str(JOBS / "where_read.py"), master, topics.bootstrap, source],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=directory,  # Spark leaves files there
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = sorted(message.value() for message in topics.read(source))
    for target in targets:
        assert sorted(message.value() for message in topics.read(target)) == rows
    return json.loads(done.stdout.splitlines()[-1])


def with_options(reader: Any, bootstrap: str, options: dict[str, Any]) -> Any:
    schema = options.pop("schema", None)
    reader = reader.option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        reader = reader.option(name.replace("__", "."), text)
    return reader.schema(schema) if schema else reader


class Collected:
    """The rows of a stream, batch by batch, and its query."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Any]] = {}
        self.query: Any = None

    def start(self, frame: Any, **trigger: Any) -> "Collected":
        def keep(batch: Any, batch_id: int) -> None:
            self.batches[batch_id] = batch.collect()

        writer = frame.writeStream.foreachBatch(keep).option(
            "checkpointLocation", str(self.checkpoint)
        )
        if trigger:
            writer = writer.trigger(**trigger)
        self.query = writer.start()
        return self

    def finish(self) -> "Collected":
        """Wait for a query that ends on its own."""
        assert self.query.awaitTermination(120), "the query did not end"
        return self

    def stop(self) -> "Collected":
        self.query.stop()
        return self

    def values(self) -> list[str]:
        return [
            bytes(row.value).decode() for number in sorted(self.batches)
            for row in self.batches[number]
        ]  # fmt: skip

    def wait_for_values(self, count: int) -> "Collected":
        wait_for(
            lambda: self.query.exception() is not None or len(self.values()) >= count,
            f"{count} values",
        )
        if self.query.exception() is not None:
            raise self.query.exception()
        assert len(self.values()) == count, self.values()
        return self


def error_of(error: BaseException) -> str:
    """The whole text of a failed query, with the errors of Python workers."""
    return str(error)


@contextmanager
def failing_table(name: str) -> Iterator[None]:
    """A table whose disk is full, after the tables before it have the rows of a batch."""
    appends = JobTable.append_few

    def append_few(table: JobTable, rows: pa.Table, batch: BatchName) -> Appended:
        if table.name == name:
            raise OSError("the disk is full")
        return appends(table, rows, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobTable, "append_few", append_few)
        yield
