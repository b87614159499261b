"""A shipper in its own process, and what it shipped."""

import contextlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from headrace.ship.generations import Digest

SOURCE = Path(__file__).parents[2] / "src"


class ShipperProcess:
    """``headrace ship`` with one state directory; it may be killed and started again."""

    def __init__(self, bootstrap_servers, directory, pattern, topic, *options):
        self.state = directory / "state"
        self.log = directory / "shipper.log"
        self._command = [sys.executable, "-m", "headrace", "ship", str(pattern), "-t", topic]
        self._command += ["--state", str(self.state), *options]
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "HEADRACE_BOOTSTRAP": bootstrap_servers,
        }
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stderr=log
            )

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self):
        """SIGTERM; return the exit status."""
        self._process.terminate()
        status = self._process.wait(60)
        self._process = None
        return status

    def running(self):
        return self._process is not None and self._process.poll() is None

    def wait(self):
        return self._process.wait(60)

    def saved(self):
        """The state file; empty before the first save."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.state / "positions.json").read_text())
        return {"generations": [], "totals": {}}

    def position(self, path):
        """The acknowledged offset of the content that a path leads to; -1 if unknown.

        The inode alone does not tell: the saved position may be of a deleted file.
        """
        content = Path(path).read_bytes()
        inode = os.stat(path).st_ino
        for entry in self.saved()["generations"]:
            offset, length, digest, _ = entry["marks"][-1]
            tail = Digest.of(content[offset - length : offset])
            if entry["inode"] == inode and tail == (length, digest):
                return offset
        return -1

    def has_shipped(self, path):
        return self.position(path) == os.stat(path).st_size


def record_count(bootstrap_servers, topic):
    """All records of a topic, including repeats."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "counter"})
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        partitions = [TopicPartition(topic, number) for number in numbers]
        ranges = [consumer.get_watermark_offsets(one, timeout=10) for one in partitions]
    finally:
        consumer.close()
    return sum(end - start for start, end in ranges)


def shipped(bootstrap_servers, topic):
    """The values of all records, by event ID: the first record of each counts."""
    events = {}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reader"})
    try:
        for number in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
            partition = TopicPartition(topic, number)
            start, end = consumer.get_watermark_offsets(partition, timeout=10)
            consumer.assign([TopicPartition(topic, number, start)])
            read = start
            while read < end:
                for record in consumer.consume(10_000, timeout=1):
                    assert record.error() is None
                    read = record.offset() + 1
                    headers = dict(record.headers())
                    names = ("host", "file", "generation", "offset")
                    events.setdefault(tuple(headers[name] for name in names), record.value())
    finally:
        consumer.close()
    return events


def ids_by_value(events):
    found = defaultdict(list)
    for event_id, value in events.items():
        found[value].append(event_id)
    return found
