"""Exactly-once writes under ``kill -9`` of driver, executors, Python workers and brokers.

A standalone cluster runs the job, so that executors outlive a killed driver for a while and
continue to write, as in production.
"""

import os
import random
import sys
import time
from functools import partial

import pytest

from headrace.testing import Broker, Cluster
from tests.spark.kit import JOBS, Topics, wait_for
from tests.spark.processes import Run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.torture,
    pytest.mark.timeout(0),
]

JOB = JOBS / "copy_once.py"
ROWS = 100_000  # twenty rounds, two for each copy, make a million
ROUNDS_PER_COPY = 2  # most of the time goes into starting the job
# A killed driver ends a run, and so may a killed Python worker; the rest is luck.
RUNS_MAX = 8
# Every copy survives one kill of each kind, in any order.
VICTIMS = ("driver", "broker", "executor", "python")
# In a cluster: the brokers with these roles at that moment, one after the other.
ROLES = ("leader of the source", "leader of the target", "controller")


@pytest.fixture
def node():
    named = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if named:
        yield named, None
        return
    with Broker(process=True) as broker:
        yield broker.bootstrap_servers, broker


@pytest.mark.long
def test_every_row_is_copied_once_despite_kills(node, standalone, torture_rounds, tmp_path):
    bootstrap, broker = node
    topics = Topics(bootstrap)
    copied = 0
    for round_ in range(max(1, torture_rounds // ROUNDS_PER_COPY)):
        dice = random.Random(round_)
        source, target = _topics_to_copy(topics)
        log_path = tmp_path / f"round{round_}.log"
        victims = [victim for victim in VICTIMS if broker is not None or victim != "broker"]
        dice.shuffle(victims)

        def kill_broker(_):
            broker.kill()
            broker.start()

        kills = _run_until_copied(
            standalone, kill_broker, dice, victims, log_path, bootstrap, source, target,
            tmp_path / f"c{round_}",
        )  # fmt: skip
        copied += _assert_copied_once(topics, target, kills, log_path)
        print(f"round {round_}: killed {', '.join(kills)}; {copied:,} rows copied once in all")


@pytest.mark.long
def test_every_row_is_copied_once_despite_kills_of_brokers(standalone, torture_rounds, tmp_path):
    with Cluster(brokers=3, process=True) as cluster:
        for round_ in range(max(1, torture_rounds // ROUNDS_PER_COPY)):
            dice = random.Random(round_)
            # A client of its own: librdkafka does not look for a new controller by itself.
            topics = Topics(cluster.bootstrap_servers)
            source, target = _topics_to_copy(topics, replicas=3, min_insync_replicas=2)
            log_path = tmp_path / f"round{round_}.log"
            roles = list(ROLES)
            dice.shuffle(roles)
            kills = _run_until_copied(
                standalone, partial(_replace_broker, cluster, source, target),
                dice, roles, log_path, cluster.bootstrap_servers, source, target,
                tmp_path / f"c{round_}",
            )  # fmt: skip
            assert kills
            _assert_copied_once(topics, target, kills, log_path)
            print(f"round {round_}: killed {', '.join(kills)}; {ROWS:,} rows copied once")


def _replace_broker(cluster, source, target, role):
    """Kill the broker with this role, and start it again once others lead."""
    if role == "controller":
        victim = cluster.controller_id()
    else:
        victim = cluster.leader_of(source if role == "leader of the source" else target)
    cluster.kill(victim)
    wait_for(
        lambda: victim not in (cluster.leader_of(source), cluster.leader_of(target)),
        f"leaders other than broker {victim}",
    )
    cluster.restart(victim)
    cluster.wait_in_sync(target)


def _topics_to_copy(topics, **settings):
    source = topics.create(partitions=3, **settings)
    for partition in range(3):
        rows = range(partition, ROWS, 3)
        topics.send(source, [(str(n), f"row {n}") for n in rows], partition)
    return source, topics.create(partitions=2, **settings)


def _assert_copied_once(topics, target, kills, log_path):
    keys = sorted(int(message.key()) for message in topics.read(target))
    assert keys == list(range(ROWS)), (
        f"with kills {kills}: {len(keys)} rows, {len(set(keys))} different; "
        f"{log_path.read_text(errors='replace')[-3000:]}"
    )
    return len(keys)


def _run_until_copied(
    standalone, kill_broker, dice, victims, log_path, bootstrap, source, target, checkpoint
):
    """Kill the victims at random moments, then let the copy end."""
    waiting = list(victims)
    kills = []
    for _ in range(RUNS_MAX):
        with log_path.open("a") as log:
            starts = _starts(log_path)
            command = [sys.executable, JOB, standalone.address, bootstrap]
            run = Run(standalone, log, *command, source, target, checkpoint)
        try:
            while waiting and run.alive():
                _let_it_work(run, dice, log_path, checkpoint, starts)
                if not run.alive():
                    break
                victim = waiting.pop()
                if victim == "driver":
                    run.kill_driver()
                elif victim == "broker" or victim in ROLES:
                    kill_broker(victim)
                elif not run.kill_one(victim, dice):
                    continue  # the job had ended already
                kills.append(victim)
            if run.alive():
                assert run.process.wait(300) is not None
            if run.process.returncode == 0:
                return kills
        finally:
            if run.alive():
                run.kill_driver()
    raise AssertionError(
        f"no run came to its end; kills {kills}; {log_path.read_text(errors='replace')[-3000:]}"
    )


def _starts(log_path):
    return log_path.read_text(errors="replace").count("STARTED")


def _batches(checkpoint):
    """The number of batches started in all runs."""
    return len(list((checkpoint / "offsets").glob("[0-9]*")))


def _let_it_work(run, dice, log_path, checkpoint, starts_before):
    """Wait for the query to start, then for a random moment some batches later.

    It counts batches and not seconds, so that a slow job is not killed before it works.
    """
    give_up_at = time.monotonic() + 300
    while run.alive() and _starts(log_path) == starts_before:
        assert time.monotonic() < give_up_at, "the job did not start"
        time.sleep(0.02)
    wanted = _batches(checkpoint) + dice.choice([1, 1, 2])
    while run.alive() and _batches(checkpoint) < wanted and time.monotonic() < give_up_at:
        time.sleep(0.02)
    until = time.monotonic() + dice.uniform(0, 1)
    while run.alive() and time.monotonic() < until:
        time.sleep(0.02)
