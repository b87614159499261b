"""Three transactional producers and a copier, while their processes and the brokers get faults.

Read with read_committed, the input has every record of every committed transaction once and in
order, and none of an aborted one. A transaction with an unknown end is there completely or not at
all. The output equals the input, record by record, and in the end the last stable offset reaches
the high watermark.
"""

import operator
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

WORKERS = Path(__file__).with_name("transaction_workers.py")
PARTITIONS = 3
TOPICS = {"in": PARTITIONS, "out": PARTITIONS}
RECORDS_PER_ROUND = 5_000  # twenty rounds make a hundred thousand
LIMIT_S = 180


class Worker:
    def __init__(self, kind, name, bootstrap, directory):
        self.journal = directory / f"{name}.journal"
        self.command = [sys.executable, str(WORKERS), kind, bootstrap, name, str(self.journal)]
        self.errors = (directory / f"{name}.errors").open("ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.errors, stderr=self.errors)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Let it finish; one that has just been started knows SIGTERM a moment later."""
        ready = self.journal.with_name(f"{self.journal.name}.{self.process.pid}")
        wait_for(lambda: ready.exists() or self.process.poll() is not None, f"{ready.name}")
        self.process.terminate()

    def wait(self):
        try:
            assert self.process.wait(LIMIT_S) == 0, self.journal
        finally:
            self.kill()
            self.errors.close()

    def lines(self):
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def begun(self):
        """Number of records of every transaction that it began, by its number."""
        return {
            int(words[1]): int(words[2])
            for words in map(str.split, self.lines())
            if words and words[0] == "begin" and len(words) == 3
        }

    def ended(self, how):
        return {int(line.split()[1]) for line in self.lines() if line.startswith(how + " ")}


def paused(process_id, seconds):
    os.kill(process_id, signal.SIGSTOP)
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGCONT)


def fault_of_a_worker(dice, workers):
    """Cause a random fault; return its name."""
    victim = dice.choice(workers)
    what = dice.choice(["kill", "kill", "pause", "long pause"])
    if what == "kill":
        victim.kill()
        victim.start()
    elif what == "pause":
        paused(victim.process.pid, dice.uniform(0.1, 1))
    else:
        paused(victim.process.pid, dice.uniform(3, 5))  # until its transaction has timed out
    return what


def wait_for(condition, what):
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"timed out waiting for {what}"
        time.sleep(0.1)


def committed_values(bootstrap, topic, partition):
    """All committed values, and the offset after the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values, end = [], 0
    give_up_at = time.monotonic() + LIMIT_S
    while time.monotonic() < give_up_at:
        for record in consumer.consume(10_000, 0.5):
            if record.error() is not None:
                assert record.error().code() == KafkaError._PARTITION_EOF
                consumer.close()
                return values, end
            values.append(record.value().decode())
            end = record.offset() + 1
    raise AssertionError(f"{topic}-{partition} has no end")


def ends_of(bootstrap, topic, partition):
    """Last stable offset and high watermark."""
    return [
        asking(bootstrap, level).get_watermark_offsets(
            TopicPartition(topic, partition), timeout=20
        )[1]
        for level in ("read_committed", "read_uncommitted")
    ]


def copied_to(bootstrap):
    partitions = [TopicPartition("in", number) for number in range(PARTITIONS)]
    committed = asking(bootstrap, group="copier").committed(partitions, timeout=20)
    return [each.offset for each in committed]


def asking(bootstrap, level="read_committed", group="asks"):
    settings = {"bootstrap.servers": bootstrap, "isolation.level": level, "group.id": group}
    return Consumer(settings | {"log_level": 0})


def check_input(producers, found):
    """Check the values of each partition; return the number of committed transactions."""
    values = [value for partition in found for value in partition]
    assert len(values) == len(set(values)), "a record exists twice"
    for partition in found:
        by_producer = defaultdict(list)
        for value in partition:
            name, number, index = value.split(":")
            by_producer[name].append((int(number), int(index)))
        for places in by_producer.values():
            assert places == sorted(places), "records are out of order"
    seen = defaultdict(int)
    for value in values:
        name, number, _ = value.split(":")
        seen[name, int(number)] += 1
    for name, producer in producers.items():
        committed, aborted = producer.ended("committed"), producer.ended("aborted")
        for number, count in producer.begun().items():
            there = seen[name, number]
            if number in committed:
                assert there == count, (
                    f"{name}:{number} was committed, but has {there} of {count} records"
                )
            elif number in aborted:
                assert there == 0, f"{name}:{number} was aborted, but has {there} records"
            else:
                assert there in (0, count), f"{name}:{number} has {there} of {count} records"
    return len(seen)


def exactly_once(brokers, directory, rounds, fault_of_brokers):
    """Run it. ``fault_of_brokers(dice, brokers)`` causes one fault, and returns its name."""
    dice = random.Random(4)
    journals = directory / "journals"
    journals.mkdir()
    bootstrap = brokers.bootstrap_servers
    producers = {
        name: Worker("produce", name, bootstrap, journals) for name in ("one", "two", "three")
    }
    copier = Worker("copy", "copier", bootstrap, journals)
    workers = [*producers.values(), copier]
    faults = []

    def begun():
        return sum(sum(producer.begun().values()) for producer in producers.values())

    try:
        for _ in range(rounds):
            goal = begun() + RECORDS_PER_ROUND
            wait_for(lambda goal=goal: begun() >= goal, "progress")
            faults.append(fault_of_brokers(dice, brokers))
            if dice.random() < 0.5:
                faults.append(fault_of_a_worker(dice, workers))
        for producer in producers.values():
            producer.stop()
        for producer in producers.values():
            producer.wait()
        places = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
        for place in places[:PARTITIONS]:
            wait_for(
                lambda place=place: len(set(ends_of(bootstrap, *place))) == 1,
                f"the last stable offset of {place}",
            )
        read = [committed_values(bootstrap, "in", number) for number in range(PARTITIONS)]
        found, ends = zip(*read, strict=True)
        # After the last record there are markers; a consumer may or may not pass them.
        wait_for(
            lambda: all(map(operator.ge, copied_to(bootstrap), ends)),
            f"the copier to reach {ends}",
        )
    finally:
        for worker in workers:
            worker.stop()
        copier.wait()
        for producer in producers.values():
            producer.kill()
    for place in places:
        wait_for(lambda place=place: len(set(ends_of(bootstrap, *place))) == 1, str(place))
    committed = check_input(producers, found)
    for number in range(PARTITIONS):
        assert committed_values(bootstrap, "out", number)[0] == found[number]
    print(
        f"{rounds} rounds ({', '.join(sorted(set(faults)))}): {begun()} records sent, "
        f"{sum(map(len, found))} in {committed} committed transactions, each copied once and in "
        "order"
    )
