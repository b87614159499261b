"""The operator's tools on four brokers under load, each also killed in the middle: nothing is lost.

A checker judges what producers, readers and a group saw meanwhile.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import time

import pytest

from headrace.testing import Cluster
from tests.fakes.waiting import wait_until
from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

TOPICS = {"plain": {"idempotent": False}, "idempotent": {"compression": "lz4"}}
PARTITIONS = 2


class Operator:
    def __init__(self, cluster, directory):
        self.cluster = cluster
        self.file = str(directory / "moves.json")
        self.state = str(directory / "verify.json")
        self._environment = {**os.environ, "HEADRACE_BOOTSTRAP": cluster.bootstrap_servers}

    def start(self, *words):
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, f"{words}: {out}{err}"
        return out

    def start_and_kill(self, chance, *words):
        """Kill the command somewhere in the middle."""
        process = self.start(*words)
        try:
            process.communicate(timeout=chance.uniform(0.5, 2.5))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def run_and_kill_first(self, chance, *words):
        """Kill the command somewhere in the middle, then run it to its end."""
        self.start_and_kill(chance, *words)
        return self.run(*words)

    def verify_replicas(self, *options):
        """Verify, and do what the command says: again once all replicas are in sync.

        On a busy machine a broker's session may expire at any moment, and its replicas leave
        the ISR.
        """
        wait_until(lambda: self._compared_all(*options))

    def _compared_all(self, *options):
        process = self.start("verify-replicas", *options, "--format", "json")
        out, err = process.communicate(timeout=240)
        assert out, err
        found = json.loads(out)
        assert found["differences"] == [], out
        return found["not_compared"] == []


def reassign(operator, chance):
    brokers = sorted(chance.sample(range(4), 3))
    ids = ",".join(map(str, brokers))
    made = operator.run("reassign", "generate", *TOPICS, "--brokers", ids)
    if not json.loads(made)["partitions"]:
        return
    with open(operator.file, "w") as file:
        file.write(made)
    operator.run("reassign", "plan", "--file", operator.file)
    operator.run_and_kill_first(
        chance, "reassign", "execute", "--file", operator.file, "--throttle", "10M"
    )
    operator.run("reassign", "verify", "--file", operator.file)


def change_factor(operator, chance):
    for factor in ("2", "3"):
        operator.run_and_kill_first(
            chance, "topics", "alter", "idempotent", "--replication-factor", factor
        )


def decommission(operator, chance):
    broker = str(chance.randrange(4))
    operator.run_and_kill_first(chance, "brokers", "decommission", broker)
    rows = json.loads(operator.run("brokers", "list", "--format", "json"))
    assert [row["replicas"] for row in rows if str(row["broker"]) == broker] in ([0], [])


def verify_replicas(operator, chance):
    operator.start_and_kill(
        chance, "verify-replicas", *TOPICS, "--state", operator.state, "--throttle", "2M"
    )
    operator.verify_replicas(*TOPICS, "--state", operator.state, "--throttle", "2M")


# Two of them run with every make test.
ROUNDS = [reassign, verify_replicas, decommission, change_factor]


def test_nothing_is_lost_while_partitions_move(tmp_path, torture_rounds):
    history = History()
    chance = random.Random(1)
    settings = {"min.insync.replicas": 1, "offsets.topic.num.partitions": 4}
    topics = {name: {"partitions": PARTITIONS} for name in TOPICS}
    with (
        Cluster(brokers=4, process=True, data=tmp_path, topics=topics, config=settings) as cluster,
        StockClients(history, cluster) as clients,
    ):
        operator = Operator(cluster, tmp_path)
        for name, options in TOPICS.items():
            clients.produce(name, name, PARTITIONS, **options)
        for number in range(2):
            clients.join(f"member-{number}", "group", ["idempotent"])
        started_at = time.monotonic()
        for one_round in itertools.islice(itertools.cycle(ROUNDS), torture_rounds):
            clients.wait_progress()
            one_round(operator, chance)
            print(f"{time.monotonic() - started_at:6.1f} s  {one_round.__name__}", flush=True)
            clients.wait_progress()
        clients.finish()
        assert anomalies(history) == []
        operator.verify_replicas()
    print(f"{clients.acknowledged_count} records acknowledged: no anomaly")
