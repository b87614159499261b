"""The warehouse load under ``kill -9`` of driver, executors, Python workers and the broker.

The load runs as a user runs it, on a standalone cluster, while records arrive. All rounds load a
million records, one in a hundred of them broken. Some rounds also clean the log of the table up, or
delete the topic and create it again. At the end SQL counts: each record is a row or a dead letter,
once.
"""

import random
import sys
import time

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.pipeline.warehouse.offsets import txn_id
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS
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
PARTITIONS = 3
PATIENCE_S = 300
RECORDS = 51_000  # a round; twenty make a million
BROKEN_EVERY = 100


class Loading:
    """A load that is started again whenever it ends."""

    def __init__(self, standalone, bootstrap, table, log_path):
        self.table = table
        self.starts = 0
        self._standalone = standalone
        self._log_path = log_path
        self._command = [
            sys.executable, "-m", "headrace", "pipeline", "load", "orders", "--table", table,
            "-b", bootstrap, "--every", "200ms", "--batch-size", "500k", "--value", "string",
            "--master", standalone.address, "--format", "json",
        ]  # fmt: skip
        self.run = None
        self.ensure()

    def ensure(self):
        if self.run is None or not self.run.alive():
            self.starts += 1
            with self._log_path.open("a") as log:
                self.run = Run(self._standalone, log, *self._command)

    def recorded(self, topic_id):
        """The next offset of each partition; 0 before the first commit."""
        if not DeltaTable.is_deltatable(str(self.table)):
            return [0] * PARTITIONS
        table = DeltaTable(str(self.table))
        return [table.transaction_version(txn_id(topic_id, n)) or 0 for n in range(PARTITIONS)]

    def wait_until(self, condition, what):
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            log_end = self._log_path.read_text(errors="replace")[-3000:]
            assert time.monotonic() < give_up_at, f"waited for {what}: {log_end}"
            self.ensure()
            time.sleep(0.2)  # each look reads the log of the table

    def stop(self):
        if self.run is not None and self.run.alive():
            self.run.kill_driver()


class Sent:
    """Topics of one name, one after the other, and what was sent to each."""

    def __init__(self, topics):
        self._topics = topics
        self.total = 0
        self.broken = 0
        self.create()

    def create(self):
        self._topics.create(name="orders", partitions=PARTITIONS)
        found = self._topics.admin.describe_topics(_names("orders"))["orders"].result(30)
        self.topic_id = _id_bytes(found.topic_id)
        self.ends = [0] * PARTITIONS

    def send(self, count):
        for partition in range(PARTITIONS):
            part = count // PARTITIONS
            first = self.ends[partition]
            offsets = range(first, first + part)
            values = [b"\xff%d" % n if _is_broken(n) else n for n in offsets]
            self._topics.send("orders", values, partition)
            self.ends[partition] += part
            self.total += part
            self.broken += sum(map(_is_broken, offsets))

    def create_again(self):
        self._topics.delete("orders")
        self.create()


def _is_broken(offset):
    """Whether the value of this record is no UTF-8."""
    return offset % BROKEN_EVERY == BROKEN_EVERY - 1


def _names(*names):
    from confluent_kafka import TopicCollection

    return TopicCollection(list(names))


def _id_bytes(topic_id):
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return b"".join((bits % (1 << 64)).to_bytes(8, "big") for bits in (high, low))


def test_every_record_is_loaded_once_despite_kills(standalone, torture_rounds, tmp_path):
    dice = random.Random(14)
    victims = [dice.sample(VICTIMS, len(VICTIMS)) for _ in range(torture_rounds)]
    victims = [victim for some in victims for victim in some][:torture_rounds]
    with Broker(process=True, data=tmp_path / "node") as broker:
        sent = Sent(Topics(broker.bootstrap_servers))
        sent.send(RECORDS)
        table = tmp_path / "orders"
        loading = Loading(standalone, broker.bootstrap_servers, table, tmp_path / "load.log")
        try:
            for round_, victim in enumerate(victims):
                if round_:
                    sent.send(RECORDS)
                _kill_while_it_loads(loading, broker, sent, victim, dice)
                if round_ % 5 == 1:
                    _load_all(loading, sent)
                    _clean_up_log(table)
                    sent.create_again()
                    sent.send(3_000)
            _load_all(loading, sent)
        finally:
            loading.stop()
    rows, letters, repeated = _count_each_once(table)
    assert letters == sent.broken > 0
    assert rows + letters == sent.total
    print(
        f"killed {', '.join(victims)}; {loading.starts} starts; {sent.total:,} records: {rows:,} "
        f"rows and {letters:,} dead letters, each once ({repeated:,} letters written again)"
    )


def _kill_while_it_loads(loading, broker, sent, victim, dice):
    """Kill at a random moment after the load has begun with the newest records."""
    before = sum(loading.recorded(sent.topic_id))
    loading.wait_until(
        lambda: (done := sum(loading.recorded(sent.topic_id))) > before or done == sum(sent.ends),
        "progress",
    )
    time.sleep(dice.uniform(0, 1))
    if victim == "driver":
        loading.run.kill_driver()
    elif victim == "broker":
        broker.kill()
        broker.start()
    else:
        loading.wait_until(lambda: loading.run.kill_one(victim, dice), f"a process: {victim}")


def _load_all(loading, sent):
    loading.wait_until(lambda: loading.recorded(sent.topic_id) == sent.ends, "all records")


def _clean_up_log(table):
    """Delete what the newest checkpoint replaces, as Delta does after its retention time."""
    DeltaTable(str(table)).create_checkpoint()
    log = table / "_delta_log"
    newest = max(path.name for path in log.glob("*.checkpoint.parquet"))[:20]
    for path in log.glob("*.json"):
        if path.name[:20].isdecimal() and path.name[:20] < newest:
            path.unlink()


def _count_each_once(table):
    """Rows, dead letters, and how many letters were written again by a batch that ran again."""
    orders = DeltaTable(str(table)).to_pyarrow_dataset()
    letters = DeltaTable(str(table / DEAD_LETTERS)).to_pyarrow_dataset()
    place = "_topic_id, _partition, _offset"
    with duckdb.connect() as database:
        database.register("orders", orders)
        database.register("letters", letters)

        def one(query):
            return database.sql(query).fetchall()[0]

        rows, distinct, wrong = one(
            f"select count(*), count(distinct ({place})), "
            f"count(*) filter (where value::bigint != _offset) from orders"
        )
        assert (distinct, wrong) == (rows, 0)
        written, bad, wrong = one(
            f"select count(*), count(distinct ({place}, stage)), count(*) filter (where "
            f"stage != 'decode' or _offset % {BROKEN_EVERY} != {BROKEN_EVERY - 1}) from letters"
        )
        assert wrong == 0
        # No record is in both, and of each topic ID every offset up to the last is in one.
        places = f"select {place} from orders union all select distinct {place} from letters"
        total, distinct, in_range = one(
            f"with places as ({places}) select count(*), count(distinct ({place})), "
            "(select sum(last + 1) from (select max(_offset) as last from places "
            "group by _topic_id, _partition)) from places"
        )
        assert total == distinct == in_range == rows + bad
    return rows, bad, written - bad
