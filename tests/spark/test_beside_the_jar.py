"""Spark's own Kafka jar beside us: the same job on the same topic gives the same table.

The jar runs on PySpark 4.0.0 in an environment of its own, made once under ``.cache/spark-jar``.
"""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]

JOB = Path(__file__).parent / "jobs" / "either_source.py"
HOME = Path(__file__).parents[2] / ".cache" / "spark-jar"
JARS = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "4.0.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": "4.0.0",
    "org.apache.kafka:kafka-clients": "3.9.1",
    "org.apache.commons:commons-pool2": "2.12.0",
}


@pytest.fixture(scope="session")
def jar():
    """How to run a job with the jar: the interpreter and the list of jars."""
    python = HOME / "env" / "bin" / "python"
    if not (HOME / "ready").exists():
        if shutil.which("mvn") is None:
            pytest.skip("no Maven to fetch the jar with")
        HOME.mkdir(parents=True, exist_ok=True)
        (HOME / "pom.xml").write_text(pom())
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
            cwd=HOME,
            check=True,
        )
        venv.create(HOME / "env", with_pip=True)
        packages = ["pyspark==4.0.0", "pyarrow", "numpy", "pandas<3"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        (HOME / "ready").touch()
    return str(python), ",".join(str(path) for path in sorted((HOME / "jars").glob("*.jar")))


def pom():
    entries = "".join(
        f"<dependency><groupId>{name.split(':')[0]}</groupId>"
        f"<artifactId>{name.split(':')[1]}</artifactId><version>{number}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions></dependency>"
        for name, number in JARS.items()
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId>"
        f"<artifactId>spark-jar</artifactId><version>1</version><dependencies>{entries}"
        "</dependencies></project>"
    )


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
    """Three partitions with all that a topic may hold: nulls, headers, codecs, transactions."""
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


def test_a_job_moves_from_the_jar_to_us_with_its_checkpoint(run, topics, tmp_path):
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
