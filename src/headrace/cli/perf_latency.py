"""``headrace perf latency``: the time from sending a record to receiving it."""

import contextlib
import time
from typing import Annotated

import typer
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from headrace.cli import offsets as offsets_of
from headrace.cli import output, perf_report, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Acks,
    AcksOption,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    RecordSize,
    Topic,
)
from headrace.cli.partitions import named
from headrace.cli.percentiles import Percentiles


def perf_latency(
    topic: Topic,
    records: Annotated[
        int, typer.Option("-n", "--records", metavar="N", min=1, help="Number of records to send.")
    ] = 1000,
    size: RecordSize = "100",
    acks: AcksOption = Acks.ALL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Measure the latency from sending a record to receiving it.

    Sends one record at a time and waits for it to arrive.
    """
    payload = perf_report.payloads(values.size(size))[0]
    connection = Connection(bootstrap, settings, client_file)
    producer = connection.producer(
        {"acks": acks.value, "enable.idempotence": acks is Acks.ALL, "linger.ms": 0}
    )
    consumer = connection.consumer({"fetch.wait.max.ms": 500, "fetch.error.backoff.ms": 0})
    acknowledged, delivered = Percentiles(), Percentiles()
    with contextlib.closing(consumer), perf_report.measuring() as measurement:
        _warm_up(connection, producer, consumer, topic, payload)
        started_at = shown_at = time.perf_counter()
        for number in range(records):
            sent_at = time.perf_counter()
            if sent_at - shown_at > perf_report.PROGRESS_INTERVAL_S:
                shown_at = sent_at
                perf_report.show_progress(number, records, sent_at - started_at)
            _send(connection, producer, topic, payload)
            if producer.flush(ANSWER_TIMEOUT_S):
                raise output.CommandFailed(f"record {number + 1} was not acknowledged")
            acknowledged.add(time.perf_counter() - sent_at)
            _receive(connection, consumer, topic)
            delivered.add(time.perf_counter() - sent_at)
    perf_report.show(
        format,
        {"topic": topic, "records": delivered.count},
        {"acknowledgement": acknowledged, "end_to_end": delivered},
    )
    measurement.leave_if_interrupted()


def _warm_up(
    connection: Connection, producer: Producer, consumer: Consumer, topic: str, payload: bytes
) -> None:
    """Send and receive one record before the clock starts: creates topic and connections."""
    _send(connection, producer, topic, payload)
    if producer.flush(ANSWER_TIMEOUT_S):
        raise output.CommandFailed(f"topic {topic}: the first record was not acknowledged")
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
