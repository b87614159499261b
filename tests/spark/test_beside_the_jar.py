"""Compared with Spark's Kafka jar: the same job on the same topic gives the same table.

The jar runs on PySpark 4.0.0 in an environment of its own, made once under ``.cache/spark-jar``.
"""

import json
import subprocess
import sys

import pytest

from bench import spark_jar
from tests.spark.kit import JOBS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]

JOB = JOBS / "either_source.py"


@pytest.fixture(scope="session")
def jar():
    """The interpreter and the list of jars for a job with Spark's Kafka source."""
    if reason := spark_jar.missing():
        pytest.skip(f"Spark's Kafka jar {reason}")
    return spark_jar.fetch()


@pytest.fixture
def run(jar, bootstrap):
    def job(side, what, output, **options):
        python, jars = jar if side == "kafka" else (sys.executable, "")
        given = {"kafka.bootstrap.servers": bootstrap, **options}
        done = subprocess.run(
            [python, str(JOB), side, jars, what, str(output), json.dumps(given)],
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    return job


@pytest.fixture
def mixed(topics, bootstrap):
    """Three partitions with nulls, headers, codecs and transactions."""
    from confluent_kafka import Producer

    topic = topics.create("mixed", 3)
    topics.send(topic, [("k", "v"), (None, None), ("", "")], 0, timestamp=1_700_000_000_123)
    topics.send(topic, ["with headers"], 1, headers=[("a", b"\x00"), ("b", None), ("a", b"2")])
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for n in range(2000):
            producer.produce(topic, f"{codec} {n}", str(n), partition=n % 3)
        assert producer.flush(60) == 0
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topics.name("txn")})
    producer.init_transactions(30)
    for number, commit in enumerate([True, False]):
        producer.begin_transaction()
        for n in range(10):
            producer.produce(topic, f"transaction {number} {n}", partition=2)
        assert producer.flush(30) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    return topic


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kafka.isolation.level": "read_committed"},
        {"startingTimestamp": "1700000000124", "minPartitions": "7"},
    ],
)
def test_the_same_read_gives_the_same_table(run, mixed, tmp_path, options):
    given = {"subscribe": mixed, "includeHeaders": "true", **options}
    for side in ("kafka", "headrace"):
        run(side, "read", tmp_path / side, **given)

    theirs, ours = ((tmp_path / side).read_text() for side in ("kafka", "headrace"))
    assert len(ours.splitlines()) > 8000
    assert ours == theirs


def test_both_put_every_key_into_the_same_partition(run, topics, tmp_path):
    places = {}
    for side in ("kafka", "headrace"):
        topic = topics.create(side, 7)
        run(side, "write", tmp_path, topic=topic)
        places[side] = {m.key(): m.partition() for m in topics.read(topic)}

    assert len(places["headrace"]) == 1000
    assert places["headrace"] == places["kafka"]


def test_a_job_moves_from_the_jar_to_headrace_with_its_checkpoint(run, topics, tmp_path):
    topic = topics.create(partitions=2)
    topics.send(topic, range(50), 0)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    run("kafka", "stream", tmp_path, **options)
    topics.send(topic, range(50, 90), 1)

    run("headrace", "stream", tmp_path, **options)

    rows = [
        int(json.loads(line)["value"])
        for path in (tmp_path / "rows").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert sorted(rows) == list(range(90))
