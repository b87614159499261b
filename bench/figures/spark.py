"""Spark with our source and sink, compared with Spark's own Kafka jar: same topics, same cores.

The jar runs on PySpark 4.0.0, our source on the installed version. Both read from and write to the
same Headrace node.
"""

import datetime
import json
import random
import time
from typing import Any

from confluent_kafka import Producer

from bench import topics
from bench.report import Row, ratio_at_least, ratio_at_most, value_at_most
from bench.run import Run, Samples
from bench.spark_session import sessions

_PARTITIONS = 4
_BESIDE = "Spark's Kafka jar"
_FIRST_MS = 1_790_000_000_000
_STEP_MS = 10

_READS = {
    "read": ("nothing done with the rows", ratio_at_least(1.0)),
    "json": ("one JSON field, grouped and counted", ratio_at_least(2.0)),
    "parquet": ("to Parquet files", ratio_at_least(1.3)),
}
_WRITES = {"at-least-once": 1.0, "exactly-once": 0.8}
_READERS = (1, 3, 6)


def fill_with_views(address: str, topic: str, count: int) -> None:
    """Fill four lz4 partitions with 160-byte rows of JSON, 10 ms apart, the same in every run."""
    topics.create(address, topic, _PARTITIONS)
    settings = {"compression.type": "lz4", "linger.ms": 20, "queue.buffering.max.messages": 200_000}
    producer = Producer({"bootstrap.servers": address, **settings})
    dice = random.Random(7)
    for number in range(count):
        value = {
            "user": dice.randrange(100_000),
            "page": f"/page/{dice.randrange(5_000)}",
            "at": _FIRST_MS + number,
            "agent": "Mozilla/5.0 (X11; Linux)",
            "from": "https://example.org/",
            "took_ms": dice.randrange(3_000),
            "note": "x" * 10,
        }
        while True:
            try:
                producer.produce(
                    topic,
                    json.dumps(value),
                    partition=number % _PARTITIONS,
                    timestamp=_FIRST_MS + number * _STEP_MS,
                )
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise TimeoutError(f"{topic} could not be filled")


def reading(run: Run) -> list[Row]:
    """Spark reads 3 M rows of JSON: discards them, counts them by a field, writes Parquet."""
    samples = Samples("spark-read")
    count = run.sized(3_000_000, 100_000)
    with run.node("headrace") as node:
        fill_with_views(node.address, "views", count)
        with sessions(run) as started:
            for round_number in range(run.rounds + 1):
                for what, (label, _) in _READS.items():
                    for side, session in started.items():
                        directory = str(run.scratch / f"parquet-{side}")
                        told = session.ask(
                            what, address=node.address, topic="views", directory=directory
                        )
                        rate = count / told["seconds"]
                        run.say(f"spark-read {side}, {label}: {rate:,.0f} rows/s")
                        if round_number:  # the first round compiles
                            samples.add(side, label, rate)
    return [
        samples.row(label, "rows/s", target, peer="jar", beside=_BESIDE)
        for label, target in _READS.values()
    ]


def writing(run: Run) -> list[Row]:
    """Spark writes 3 M rows to four partitions, at least once and exactly once."""
    samples = Samples("spark-write")
    count = run.sized(3_000_000, 100_000)
    with run.node("headrace") as node, sessions(run) as started:
        for round_number in range(run.rounds + 1):
            for side, session in started.items():
                # The jar writes in one way only; both of ours are compared with it.
                ways = list(_WRITES) if side == "headrace" else [""]
                for way in ways:
                    topic = f"out-{side}-{way}-{round_number}"
                    topics.create(node.address, topic, _PARTITIONS)
                    options = {"delivery": way} if way else {}
                    told = session.ask(
                        "write", address=node.address, topic=topic, rows=count, options=options
                    )
                    topics.delete(node, topic)
                    rate = count / told["seconds"]
                    run.say(f"spark-write {side} {way}: {rate:,.0f} rows/s")
                    if round_number:
                        for metric in [way] if way else _WRITES:
                            samples.add(side, metric, rate)
    return [
        samples.row(way, "rows/s", ratio_at_least(least), peer="jar", beside=_BESIDE)
        for way, least in _WRITES.items()
    ]


def streaming(run: Run) -> list[Row]:
    """From produced to seen in a Spark stream's memory sink, 1,000 rows/s, default trigger."""
    samples = Samples("spark-stream")
    seconds = run.sized(20, 5)
    with run.node("headrace") as node, sessions(run) as started:
        for round_number in range(run.rounds + 1):
            for side, session in started.items():
                topic = f"live-{side}-{round_number}"
                topics.create(node.address, topic, _PARTITIONS)
                session.ask("stream", address=node.address, topic=topic)
                _produce_steadily(node.address, topic, seconds)
                told = session.ask("seen")
                if told["rows"] != seconds * 1000:
                    raise RuntimeError(f"{side} saw {told['rows']} of {seconds * 1000} rows")
                run.say(
                    f"spark-stream {side}: p50 {told['p50_ms']:.0f} ms, "
                    f"p99 {told['p99_ms']:.0f} ms, {told['batches']} batches"
                )
                if round_number:
                    samples.add(side, "produced → seen, p50", told["p50_ms"])
                    samples.add(side, "produced → seen, p99", told["p99_ms"])
    p50, p99 = "produced → seen, p50", "produced → seen, p99"
    return [
        samples.row(p50, "ms", ratio_at_most(1.3), peer="jar", beside=_BESIDE),
        samples.row(p99, "ms", peer="jar", beside=_BESIDE),
    ]


def readers(run: Run) -> list[Row]:
    """One topic read by 1, 3 and 6 Spark streams while it is written: rows/s in, and out to all."""
    samples = Samples("readers")
    count = run.sized(1_000_000, 50_000)
    with run.node("headrace") as node, sessions(run) as started:
        for round_number in range(run.rounds + 1):
            for streams in _READERS:
                for side, session in started.items():
                    topic = f"shared-{side}-{streams}-{round_number}"
                    topics.create(node.address, topic, _PARTITIONS)
                    session.ask("readers", address=node.address, topic=topic, streams=streams)
                    began = time.perf_counter()
                    _produce(node.address, topic, count)
                    written = time.perf_counter() - began
                    told = session.ask("read_all")
                    read = time.perf_counter() - began
                    topics.delete(node, topic)
                    if told["rows"] != streams * count:
                        raise RuntimeError(f"{side} read {told['rows']} of {streams * count} rows")
                    rates = {"in": count / written, "out": streams * count / read}
                    for way, rate in rates.items():
                        run.say(f"readers {side}, {streams}, {way}: {rate:,.0f} rows/s")
                        if round_number:
                            samples.add(side, _readers_metric(streams, way), rate)
    return [
        samples.row(_readers_metric(streams, way), "rows/s", peer="jar", beside=_BESIDE)
        for streams in _READERS
        for way in ("in", "out")
    ]


def _readers_metric(streams: int, way: str) -> str:
    return f"{streams} reader{'s' if streams > 1 else ''}, {way}"


def _produce(address: str, topic: str, count: int) -> None:
    settings = {"compression.type": "lz4", "linger.ms": 20, "queue.buffering.max.messages": 200_000}
    producer = Producer({"bootstrap.servers": address, **settings})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, b"x" * 160, partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise TimeoutError(f"{topic} could not be filled")


def _produce_steadily(address: str, topic: str, seconds: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    began = time.perf_counter()
    for number in range(seconds * 1000):
        producer.produce(topic, b"x" * 160, partition=number % _PARTITIONS)
        producer.poll(0)
        ahead = began + number / 1000 - time.perf_counter()
        if ahead > 0.002:
            time.sleep(ahead)
    if producer.flush(60):
        raise TimeoutError(f"{topic} could not be filled")


def filtering(run: Run) -> list[Row]:
    """Bytes that Spark's tasks fetch for a time range with 1 % of a topic, as a share of all."""
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    samples = Samples("spark-filter")
    metric = "bytes fetched for 1 % of the rows"
    count = run.sized(3_000_000, 300_000)
    with run.node("headrace") as node:
        fill_with_views(node.address, "views", count)
        first_ms = _FIRST_MS + count * _STEP_MS // 2
        first, end = (
            datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
            for ms in (first_ms, first_ms + count * _STEP_MS // 100)
        )
        filters = [GreaterThanOrEqual(("timestamp",), first), LessThan(("timestamp",), end)]
        whole, _ = _fetched(node.address, [])
        part, rows = _fetched(node.address, filters)
        run.say(f"spark-filter: {part:,} of {whole:,} bytes, {rows:,} of {count:,} rows")
        samples.add("headrace", metric, 100 * part / whole)
    return [samples.row(metric, "% of all", value_at_most(5), peer="jar")]


def _fetched(address: str, filters: list[Any]) -> tuple[int, int]:
    """Bytes and rows that the tasks of one batch read fetch; runs without Spark."""
    from headrace.client.cluster import ClientSettings
    from headrace.spark.batch import BatchReader
    from headrace.spark.cluster import Cluster
    from headrace.spark.fetching import RangeReader
    from headrace.spark.options import parse_source
    from headrace.spark.reading import RangePartition

    options = parse_source(
        {"kafka.bootstrap.servers": address, "subscribe": "views", "timestampDisorder": "0"},
        streaming=False,
    )
    planner: Any = BatchReader(options, None)  # type: ignore[arg-type]  # no rows are built
    planner.pushFilters(filters)
    cluster = Cluster(ClientSettings(address))
    size = rows = 0
    for partition in planner.partitions():
        assert isinstance(partition, RangePartition)
        reader = RangeReader(cluster, partition.range, partition.topic_id, options.fetch)
        rows += sum(records.size for records in reader)
        size += reader.bytes_fetched
    cluster.close()
    return size, rows
