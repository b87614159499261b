"""A cluster of processes under load and faults for as long as you like: nothing lost, no leak.

    python -m tests.torture.soak MINUTES [--seed N] [--data DIRECTORY]

The run has chapters. Each creates topics, runs stock clients and random faults, lets everything
converge, checks the history, and deletes the topics. One line per minute shows the memory and the
open files of each broker. Two brokers are killed again and again; the last one only hears of
faults and survives them, so its memory and its files must stay flat. Exits with 1 otherwise.
"""

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.testing import Cluster
from tests.fakes.inside import ClusterInside
from tests.fakes.waiting import wait_until
from tests.history.checker import anomalies, sent_again
from tests.history.history import History
from tests.history.stock_clients import CONVERGE_LIMIT_S, StockClients

PARTITIONS = 3
CHAPTER_S = 100
SESSION_S = 1.0
SETTINGS = {
    "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
    "log.segment.bytes": 1 << 20,
    "log.segment.delete.delay.ms": 1_000,
}
LOAD = {
    "plain": {"idempotent": False},
    "idempotent": {"compression": "lz4"},
}
SURVIVOR = 2
# The controller is elsewhere, or is gone before it could answer.
MOVED = (
    KafkaError.NOT_CONTROLLER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
)
WARM_UP = 0.25  # of the samples: caches fill before memory is compared
MEMORY_GROWTH_MAX = 1.25
FILES_GROWTH_MAX = 40


# --- faults


def kill(cluster, dice, victim):
    cluster.kill(victim)
    time.sleep(dice.choice([0, 2 * SESSION_S]))
    cluster.restart(victim)


def stop(cluster, dice, victim):
    cluster.restart(victim)


def pause(cluster, dice, victim):
    cluster.pause(victim)
    time.sleep(dice.uniform(0.2, 3) * SESSION_S)
    cluster.resume(victim)


def expire(cluster, dice, victim):
    cluster.expire_session(victim)


def cut(cluster, dice, victim):
    cluster.cut(victim)
    time.sleep(dice.uniform(0.5, 3))


def cut_tree(cluster, dice, victim):
    cluster.cut(victim, "zookeeper")
    time.sleep(dice.uniform(0.5, 3) * SESSION_S)


def slow(cluster, dice, victim):
    cluster.slow(victim, None, ms=50)
    time.sleep(2)


def full_disk(cluster, dice, victim):
    cluster.fill_disk(victim)
    time.sleep(dice.uniform(0.2, 2))


def restart_zookeeper(cluster, dice, victim):
    cluster.restart_zookeeper()


DEADLY = [kill, kill, stop]
SURVIVED = [pause, expire, cut, cut_tree, slow, full_disk, restart_zookeeper]


def one_fault(cluster, dice):
    """Cause a random fault of one broker, and repair it."""
    victim = dice.randrange(3)
    what = dice.choice(SURVIVED if victim == SURVIVOR else DEADLY + SURVIVED)
    what(cluster, dice, victim)
    cluster.heal()
    return f"{what.__name__} {victim}"


# --- measures


class Meter:
    """Memory and open files of the brokers, once a minute, on a thread of its own."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.acknowledged = lambda: 0
        self.fault_count = 0
        self.memory, self.files = [], []  # of the survivor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join()

    def _run(self):
        minute = 0
        while not self._over.wait(60):
            minute += 1
            self.sample(minute)

    def sample(self, minute):
        shown = []
        for broker_id in range(3):
            try:
                memory, files = usage_of(ClusterInside(self.cluster).process_id(broker_id))
            except (OSError, RuntimeError):
                shown.append(f"{broker_id}: down")
                continue
            shown.append(f"{broker_id}: {memory:5.1f} MB {files:3} files")
            if broker_id == SURVIVOR:
                self.memory.append(memory)
                self.files.append(files)
        print(
            f"minute {minute:3}  {'  '.join(shown)}  {self.acknowledged()} acknowledged, "
            f"{self.fault_count} faults",
            flush=True,
        )

    def problems(self):
        """What grew: the last quarter compared to the first after the warm-up."""
        count = len(self.memory)
        first = int(count * WARM_UP)
        if count - first < 4:
            return []  # too short to tell
        size = max(1, (count - first) // 4)
        before, after = slice(first, first + size), slice(count - size, count)
        found = []
        if max(self.memory[after]) > MEMORY_GROWTH_MAX * max(self.memory[before]):
            found.append(f"memory grew: {self.memory}")
        if max(self.files[after]) > max(self.files[before]) + FILES_GROWTH_MAX:
            found.append(f"open files grew: {self.files}")
        return found


def usage_of(pid):
    """Resident memory in MB, and the number of open files."""
    status = Path(f"/proc/{pid}/status").read_text()
    (resident,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(resident.split()[1]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir()))


# --- the run


def chapter(cluster, dice, number, meter, until):
    """Load and faults until the given time; returns the anomalies and the acknowledged count."""
    topics = {f"{name}-{number}": options for name, options in LOAD.items()}
    create_topics(cluster, topics)
    history = History()
    before = meter.acknowledged()
    with StockClients(history, cluster) as clients:
        meter.acknowledged = lambda: before + clients.acknowledged_count
        for name, options in topics.items():
            clients.produce(name, name, PARTITIONS, **options)
        for member in range(2):
            clients.join(f"member-{member}", f"group-{number}", list(topics))
        while time.monotonic() < until:
            clients.wait_progress()
            one_fault(cluster, dice)
            meter.fault_count += 1
            for name in topics:
                cluster.wait_in_sync(name)
        clients.finish()
    delete_topics(cluster, topics)
    again = sent_again(history)
    if again:
        print(f"chapter {number}: {again} records sent again by their client under a new epoch")
    return [f"chapter {number}: {found}" for found in anomalies(history)]


def create_topics(cluster, names):
    shape = {"partitions": PARTITIONS, "min.insync.replicas": 2}
    for name in names:
        persist(
            lambda name=name: cluster.create_topics({name: shape}), KafkaError.TOPIC_ALREADY_EXISTS
        )


def delete_topics(cluster, names):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def delete(name):
        admin.list_topics(timeout=10)  # librdkafka does not look for a new controller by itself
        admin.delete_topics([name])[name].result(30)

    for name in names:
        persist(partial(delete, name), KafkaError.UNKNOWN_TOPIC_OR_PART)


def persist(change, done):
    """Repeat a change that the last fault may hit, until it succeeds or was ``done`` before."""

    def is_done():
        try:
            change()
        except KafkaException as refused:
            error = refused.args[0]
            if error.code() == done:
                return True
            if not (error.retriable() or error.code() in MOVED):
                raise
            return False
        return True

    wait_until(is_done, CONVERGE_LIMIT_S)


def soak(minutes, seed, data):
    dice = random.Random(seed)
    end = time.monotonic() + 60 * minutes
    problems = []
    with Cluster(process=True, config=SETTINGS, data=data) as cluster:
        meter = Meter(cluster)
        number = 0
        try:
            while time.monotonic() < end:
                until = min(end, time.monotonic() + CHAPTER_S)
                found = chapter(cluster, dice, number, meter, until)
                for each in found[:20]:
                    print(each)
                print(f"chapter {number}: {len(found)} anomalies", flush=True)
                problems += found
                number += 1
        finally:
            meter.close()
        problems += meter.problems()
    for growth in meter.problems():
        print(growth)
    print(
        f"{minutes:g} minutes, seed {seed}: {meter.acknowledged()} records acknowledged, "
        f"{meter.fault_count} faults, {len(problems)} problems"
    )
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="keep the logs of the brokers in this directory")
    arguments = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # ZooKeeper restarts
    if arguments.data is not None:
        return soak(arguments.minutes, arguments.seed, arguments.data)
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as directory:
        return soak(arguments.minutes, arguments.seed, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
