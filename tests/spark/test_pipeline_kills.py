"""``headrace pipeline run`` under ``kill -9`` of driver, executors, Python workers and the broker.

The pipeline runs as a user runs it, on a standalone cluster, while events arrive. At the end every
event counts once in each kind of table, is once in the topic, and the audit finds nothing missing.
Then its checkpoint is deleted: the run is refused, and --reset computes the same rows.
"""

import json
import random
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta

import pytest

from headrace.client.cluster import ClientSettings
from headrace.pipeline.quality.audit import audit
from headrace.pipeline.quality.balance import totals
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.tables import Rules, read
from headrace.spark.cluster import Cluster
from headrace.testing import Broker
from tests.spark.kit import Topics
from tests.spark.processes import Run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.torture,
    pytest.mark.timeout(0),
]

VICTIMS = ("driver", "broker", "executor", "python")
PATIENCE_S = 300
EVENTS = 5_000  # of each round
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHOPS = 7
FILE = """
from pyspark.sql import functions as F
from headrace.pipeline import source, table, topic

@source("orders", schema="event_id string, at timestamp, shop long, member long",
        event_time="at", event_id="event_id")
def orders(records):
    return records

@table(key=["shop", "minute"], merge={"orders": "sum"}, trigger="500 ms")
def shop_minutes(orders):
    minute = F.date_trunc("minute", "at").alias("minute")
    return orders.groupBy("shop", minute).agg(F.count("*").alias("orders"))

@table(key=["minute"], window="1 minute", trigger="500 ms")
def members(orders):
    return orders.groupBy(F.date_trunc("minute", "at").alias("minute")).agg(
        F.countDistinct("member").alias("members"))

@table(key=["shop"], schema="shop long, orders long", trigger="500 ms")
def shops(orders, shops):
    fresh = orders.groupBy("shop").agg(F.count("*").alias("fresh"))
    return fresh.join(shops, "shop", "left").select(
        "shop", (F.col("fresh") + F.coalesce("orders", F.lit(0))).alias("orders"))

@topic("seen", key="event_id", trigger="500 ms")
def seen(orders):
    return orders.select("event_id")
"""
RULES = {
    "shop_minutes": Rules(("shop", "minute"), {"orders": "sum"}),
    "members": Rules(("minute",)),
    "shops": Rules(("shop",)),
}


class Running:
    """A pipeline that is started again whenever it ends."""

    def __init__(self, standalone, bootstrap, directory):
        self.starts = 0
        self._standalone = standalone
        self._file = directory / "shop.py"
        self._file.write_text(textwrap.dedent(FILE))
        self.warehouse = directory / "warehouse"
        self._log_path = directory / "run.log"
        self.command = [
            sys.executable, "-m", "headrace", "pipeline", "run", self._file, "-b", bootstrap,
            "--warehouse", self.warehouse,
        ]  # fmt: skip
        self.run = None
        self.ensure()

    def ensure(self):
        if self.run is None or not self.run.alive():
            self.starts += 1
            master = ["--master", self._standalone.address]
            with self._log_path.open("a") as log:
                self.run = Run(self._standalone, log, *self.command, *master)

    @property
    def directory(self):
        return PipelineDirectory(self.warehouse / "_pipelines" / "shop")

    def processed(self):
        """The next offset of the topic after the batches that are done."""
        last = self.directory.last_batch("500ms")
        return self.directory.offsets("500ms", last)["orders"]["0"] if last >= 0 else 0

    def wait_until(self, condition, what):
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            log_end = self._log_path.read_text(errors="replace")[-3000:]
            assert time.monotonic() < give_up_at, f"waited for {what}: {log_end}"
            self.ensure()
            time.sleep(0.1)

    def stop(self):
        if self.run is not None and self.run.alive():
            self.run.kill_driver()


class Orders:
    """Events in time, late ones and repeated ones."""

    def __init__(self, topics):
        topics.create(name="orders", partitions=1)
        self._topics = topics
        self.events = []
        self.sent = 0

    def send(self, count):
        first = len(self.events)
        fresh = [self._event(first + number) for number in range(count)]
        self.events += fresh
        arrives = START + timedelta(seconds=first + count)
        again = fresh[::50]
        values = [json.dumps(one) for one in (*fresh, *again)]
        timestamp = int(arrives.timestamp() * 1000)
        self._topics.send("orders", values, timestamp=timestamp)
        self.sent += len(values)

    def _event(self, number):
        late = 7_200 if number % 400 == 0 else 0
        at = START + timedelta(seconds=number - late)
        return {
            "event_id": str(number),
            "at": at.isoformat(),
            "shop": number % SHOPS,
            "member": number % 97,
        }


def check_tables(spark, warehouse, events):
    def rows(name):
        return read(spark, warehouse / name, RULES[name]).collect()

    def minute(event):
        return event["at"][:16]

    by_minute, by_shop, members = {}, {}, {}
    for one in events:
        key = (one["shop"], minute(one))
        by_minute[key] = by_minute.get(key, 0) + 1
        by_shop[one["shop"]] = by_shop.get(one["shop"], 0) + 1
        members.setdefault(minute(one), set()).add(one["member"])
    found = {(row.shop, row.minute.isoformat()[:16]): row.orders for row in rows("shop_minutes")}
    assert found == by_minute
    assert {row.shop: row.orders for row in rows("shops")} == by_shop
    found = {row.minute.isoformat()[:16]: row.members for row in rows("members")}
    assert found == {key: len(found) for key, found in members.items()}


@pytest.mark.long
def test_every_event_counts_once_despite_kills(spark, standalone, torture_rounds, tmp_path):
    dice = random.Random(14)
    victims = [dice.sample(VICTIMS, len(VICTIMS)) for _ in range(torture_rounds)]
    victims = [victim for some in victims for victim in some][:torture_rounds]
    with Broker(process=True, data=tmp_path / "node") as broker:
        topics = Topics(broker.bootstrap_servers)
        orders = Orders(topics)
        running = Running(standalone, broker.bootstrap_servers, tmp_path)
        try:
            for victim in victims:
                before = running.processed()
                orders.send(EVENTS)
                running.wait_until(lambda before=before: running.processed() > before, "progress")
                orders.send(EVENTS // 10)
                time.sleep(dice.uniform(0, 1))
                kill(running, broker, victim, dice)
            running.wait_until(lambda: running.processed() == orders.sent, "all events")
        finally:
            running.stop()
        check_tables(spark, running.warehouse, orders.events)
        ids = sorted(int(message.key()) for message in topics.read("seen"))
        assert ids == list(range(len(orders.events)))
        cluster = Cluster(ClientSettings(broker.bootstrap_servers))
        try:
            found = totals(audit(cluster, running.warehouse, ["orders"]).balances)
        finally:
            cluster.close()
        (total,) = found
        assert (total.tier, total.found, total.missing, total.surplus) == ("job", orders.sent, 0, 0)

        checkpoint = running.directory.checkpoint("500ms")
        for path in sorted(checkpoint.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        once = [*map(str, running.command), "--once"]
        refused = subprocess.run(once, capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and "--reset" in refused.stderr
        subprocess.run([*once, "--reset"], check=True, capture_output=True)
        check_tables(spark, running.warehouse, orders.events)
    print(
        f"killed {', '.join(victims)}; {running.starts} starts; {len(orders.events):,} events, "
        "each counted once; the books balance"
    )


def kill(running, broker, victim, dice):
    if victim == "driver":
        running.run.kill_driver()
    elif victim == "broker":
        broker.kill()
        broker.start()
    else:
        running.wait_until(lambda: running.run.kill_one(victim, dice), f"a process: {victim}")
