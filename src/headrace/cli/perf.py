"""``headrace perf``: how fast a broker takes and gives records, and how soon.

The stock client does the work, driven from Python, so at small records the
figures are bounded by this process rather than by the broker.
"""

import contextlib
import random
import string
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from headrace.cli import offsets as offsets_of
from headrace.cli import output, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained, interruptible
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
    noun,
)
from headrace.cli.partitions import named
from headrace.cli.percentiles import Percentiles
from headrace.cli.produce import Acks, AcksOption, Compression, CompressionOption, Topic

app = noun(
    "Measure the throughput and latency of a broker.",
    "headrace perf produce bench --records 1000000 --size 1k",
)

Size = Annotated[
    str, typer.Option("-s", "--size", metavar="BYTES", help="Size of each value: 100, 1k, 1M.")
]
_PROGRESS_INTERVAL_S = 0.5
_IDLE_LIMIT_S = 10.0
# Several distinct values, so that compression gains only from the alphabet, not from repetition.
_PAYLOAD_COUNT_MAX = 64
_PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
_LETTERS = bytes(ord(string.ascii_letters[n % len(string.ascii_letters)]) for n in range(256))


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="perf")


@app.command(
    "produce",
    no_args_is_help=True,
    epilog=examples(
        "headrace perf produce bench --records 1000000 --size 1k",
        "headrace perf produce bench --rate 5000 --records 50000 --compression lz4",
    ),
)
def perf_produce(
    topic: Topic,
    records: Annotated[
        int, typer.Option("-n", "--records", metavar="N", min=1, help="Number of records to send.")
    ] = 1_000_000,
    size: Size = "100",
    rate: Annotated[
        float,
        typer.Option("--rate", metavar="N", min=0, help="Records per second; 0 means no limit."),
    ] = 0,
    acks: AcksOption = Acks.ALL,
    compression: CompressionOption = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Measure the throughput and acknowledgement latency of producing."""
    value_size = values.size(size)
    connection = Connection(bootstrap, settings, client_file)
    producer = connection.producer(
        {
            "acks": acks.value,
            "enable.idempotence": acks is Acks.ALL,
            "compression.type": compression.value,
            "linger.ms": 5,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1024,
        }
    )
    sent = _Sent()
    values_to_send = payloads(value_size)  # before the clock starts
    started_at = time.perf_counter()
    with _measuring() as measured:
        _send_all(connection, producer, topic, values_to_send, records, rate, sent)
    seconds = time.perf_counter() - started_at
    _show(
        format,
        {
            "topic": topic,
            "records": sent.latency.count,
            "failed": sent.failed,
            **_throughput(sent.latency.count, sent.latency.count * value_size, seconds),
        },
        sent.latency,
        "acknowledgement",
    )
    measured.leave_if_interrupted()
    if sent.failed:
        raise output.CommandFailed(f"{sent.failed} records failed, the last: {sent.last_failure}")


@app.command(
    "consume",
    no_args_is_help=True,
    epilog=examples("headrace perf consume bench --records 1000000"),
)
def perf_consume(
    topic: Topic,
    records: Annotated[
        int | None,
        typer.Option(
            "-n", "--records", metavar="N", min=1, help="Number of records to read; all by default."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Measure the throughput of consuming a topic from its beginning."""
    connection = Connection(bootstrap, settings, client_file)
    admin = connection.admin()
    partitions = list(named(connection, [topic]))
    first = offsets_of.listed(connection, admin, partitions, offsets_of.EARLIEST)
    end = offsets_of.listed(connection, admin, partitions, offsets_of.LATEST)
    available = sum((end[key].offset or 0) - (first[key].offset or 0) for key in partitions)
    wanted = available if records is None else records
    if wanted > available:
        raise output.CommandFailed(
            f"topic {topic} holds {available} records, {wanted} were asked for; "
            f"'headrace perf produce {topic}' adds some"
        )
    consumer = connection.consumer(
        {"auto.offset.reset": "earliest", "queued.min.messages": 500_000, "check.crcs": True}
    )
    consumer.assign([TopicPartition(*key, first[key].offset or 0) for key in partitions])
    count = size = 0
    started_at = shown_at = last_at = time.perf_counter()
    first_at: float | None = None
    with contextlib.closing(consumer), _measuring() as measured:
        while count < wanted:
            batch = consumer.consume(min(10_000, wanted - count), timeout=0.1)
            now = time.perf_counter()
            for message in batch:
                error = message.error()
                if error is not None:
                    raise connection.failed(error, f"reading {topic}")
                size += len(message)
                count += 1
            if batch:
                first_at = first_at or now
                last_at = now
            elif now - last_at > _IDLE_LIMIT_S:
                # Offsets taken by transaction markers and compaction are never delivered.
                break
            if now - shown_at > _PROGRESS_INTERVAL_S:
                shown_at = now
                _show_progress(count, wanted, now - started_at)
    _show(
        format,
        {
            "topic": topic,
            "records": count,
            "first_record_ms": round(((first_at or last_at) - started_at) * 1000, 1),
            **_throughput(count, size, last_at - started_at),
        },
    )
    measured.leave_if_interrupted()


@app.command(
    "latency",
    no_args_is_help=True,
    epilog=examples("headrace perf latency bench --records 2000 --size 100"),
)
def perf_latency(
    topic: Topic,
    records: Annotated[
        int, typer.Option("-n", "--records", metavar="N", min=1, help="Number of records to send.")
    ] = 1000,
    size: Size = "100",
    acks: AcksOption = Acks.ALL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Measure the latency from sending a record to receiving it.

    Sends one record at a time and waits for it to arrive.
    """
    payload = payloads(values.size(size))[0]
    connection = Connection(bootstrap, settings, client_file)
    producer = connection.producer(
        {"acks": acks.value, "enable.idempotence": acks is Acks.ALL, "linger.ms": 0}
    )
    consumer = connection.consumer({"fetch.wait.max.ms": 500, "fetch.error.backoff.ms": 0})
    acknowledged, delivered = Percentiles(), Percentiles()
    with contextlib.closing(consumer), _measuring() as measured:
        _prepare(connection, producer, consumer, topic, payload)
        started_at = shown_at = time.perf_counter()
        for number in range(records):
            sent_at = time.perf_counter()
            if sent_at - shown_at > _PROGRESS_INTERVAL_S:
                shown_at = sent_at
                _show_progress(number, records, sent_at - started_at)
            _send(connection, producer, topic, payload)
            if producer.flush(ANSWER_TIMEOUT_S):
                raise output.CommandFailed(f"record {number + 1} was not acknowledged")
            acknowledged.add(time.perf_counter() - sent_at)
            _receive(connection, consumer, topic)
            delivered.add(time.perf_counter() - sent_at)
    _show(
        format,
        {
            "topic": topic,
            "records": delivered.count,
            "acknowledgement_ms": acknowledged.named_ms(),
        },
        delivered,
        "end_to_end",
    )
    measured.leave_if_interrupted()


class _Measured:
    """Whether it could go on to its end."""

    interrupted = False

    def leave_if_interrupted(self) -> None:
        if self.interrupted:
            output.leave(output.INTERRUPTED)


@contextlib.contextmanager
def _measuring() -> Iterator[_Measured]:
    """Ctrl-C ends it, not the command: what was measured is what somebody waited for."""
    measured = _Measured()
    try:
        with interruptible():
            yield measured
    except KeyboardInterrupt:
        measured.interrupted = True
    finally:
        output.progress_over()


def _send_all(
    connection: Connection,
    producer: Producer,
    topic: str,
    payloads: list[bytes],
    records: int,
    rate: float,
    sent: "_Sent",
) -> None:
    """Send ``records`` and wait for the last report; ``rate`` 0 is as fast as it goes."""
    started_at = shown_at = time.perf_counter()
    number = 0
    while number < records:
        try:
            producer.produce(topic, payloads[number % len(payloads)], on_delivery=sent.on_delivery)
        except BufferError:
            producer.poll(0.05)
            continue
        except KafkaException as failure:
            raise connection.failed(failure, f"sending to {topic}") from None
        number += 1
        if number % 100 and not rate:
            continue
        producer.poll(0)
        now = time.perf_counter()
        # Each report ends a poll, so one poll alone would not wait long enough.
        while rate and (ahead_s := started_at + number / rate - time.perf_counter()) > 0:
            producer.poll(ahead_s)
        if now - shown_at > _PROGRESS_INTERVAL_S:
            shown_at = now
            _show_progress(sent.latency.count, records, now - started_at)
    while producer.flush(_PROGRESS_INTERVAL_S):
        _show_progress(sent.latency.count, records, time.perf_counter() - started_at)


class _Sent:
    """What the delivery reports say."""

    def __init__(self) -> None:
        self.latency = Percentiles()
        self.failed = 0
        self.last_failure = ""

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.latency.add(message.latency() or 0.0)
        else:
            self.failed += 1
            self.last_failure = explained(error)


def payloads(size: int) -> list[bytes]:
    """Values of random letters, the same in every run, so that runs can be compared."""
    dice = random.Random(0)
    count = max(1, min(_PAYLOAD_COUNT_MAX, _PAYLOAD_BYTES_MAX // max(size, 1)))
    return [dice.randbytes(size).translate(_LETTERS) for _ in range(count)]


def _prepare(
    connection: Connection, producer: Producer, consumer: Consumer, topic: str, payload: bytes
) -> None:
    """One record there and back before the clock runs: topic, connections and caches are warm."""
    _send(connection, producer, topic, payload)
    if producer.flush(ANSWER_TIMEOUT_S):
        raise output.CommandFailed(f"topic {topic}: no acknowledgement for the first record")
    partitions = list(named(connection, [topic]))
    end = offsets_of.listed(connection, connection.admin(), partitions, offsets_of.LATEST)
    consumer.assign([TopicPartition(*key, end[key].offset or 0) for key in partitions])
    _send(connection, producer, topic, payload)
    producer.flush(ANSWER_TIMEOUT_S)
    _receive(connection, consumer, topic)


def _send(connection: Connection, producer: Producer, topic: str, payload: bytes) -> None:
    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise connection.failed(error, f"sending to {topic}")

    producer.produce(topic, payload, on_delivery=on_delivery)


def _receive(connection: Connection, consumer: Consumer, topic: str) -> None:
    message = consumer.poll(ANSWER_TIMEOUT_S)
    if message is None:
        raise output.CommandFailed(f"topic {topic}: a record did not arrive")
    error = message.error()
    if error is not None:
        raise connection.failed(error, f"reading {topic}")


def _throughput(count: int, size: int, seconds: float) -> dict[str, object]:
    return {
        "seconds": round(seconds, 3),
        "records_per_s": round(count / seconds) if seconds else 0,
        "mb_per_s": round(size / seconds / 1e6, 2) if seconds else 0.0,
    }


def _show_progress(count: int, wanted: int, seconds: float) -> None:
    output.progress(f"{count:,} of {wanted:,} records, {count / seconds:,.0f} records/s")


def _show(
    format: Format,
    figures: dict[str, object],
    latency: Percentiles | None = None,
    latency_name: str = "",
) -> None:
    """The figures as a table, and the latencies drawn."""
    if format is Format.JSON:
        if latency is not None:
            figures = {**figures, f"{latency_name}_ms": latency.named_ms()}
        output.document(figures)
        return
    plots = {
        name.removesuffix("_ms"): value
        for name, value in figures.items()
        if isinstance(value, dict)
    }
    output.table(
        ["FIGURE", "VALUE"],
        [
            (name, f"{value:,}" if isinstance(value, int | float) else value)
            for name, value in figures.items()
            if value is not None and not isinstance(value, dict)
        ],
    )
    if latency is not None and (named_ms := latency.named_ms()) is not None:
        plots[latency_name] = named_ms
    for name, milliseconds in plots.items():
        output.line("")
        output.heading(f"{name.replace('_', ' ')}, ms")
        output.bars([(label, ms, f"{ms:,.3f}") for label, ms in milliseconds.items()])
