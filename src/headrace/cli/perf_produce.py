"""``headrace perf produce``: the throughput and acknowledgement latency of producing."""

import time
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.cli import output, perf_report, values
from headrace.cli.client import Connection, explained
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Acks,
    AcksOption,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Compression,
    CompressionOption,
    Format,
    OutputFormat,
    RecordSize,
    Topic,
)
from headrace.cli.percentiles import Percentiles


def perf_produce(
    topic: Topic,
    records: Annotated[
        int, typer.Option("-n", "--records", metavar="N", min=1, help="Number of records to send.")
    ] = 1_000_000,
    size: RecordSize = "100",
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
    reports = _DeliveryReports()
    payloads = perf_report.payloads(value_size)  # before the clock starts
    started_at = time.perf_counter()
    with perf_report.measuring() as measurement:
        _send_all(connection, producer, topic, payloads, records, rate, reports)
    seconds = time.perf_counter() - started_at
    count = reports.latency.count
    perf_report.show(
        format,
        {
            "topic": topic,
            "records": count,
            "failed": reports.failed,
            **perf_report.throughput(count, count * value_size, seconds),
        },
        {"acknowledgement": reports.latency},
    )
    measurement.leave_if_interrupted()
    if reports.failed:
        raise output.CommandFailed(
            f"{values.counted(reports.failed, 'record')} failed; last error: {reports.last_failure}"
        )


def _send_all(
    connection: Connection,
    producer: Producer,
    topic: str,
    payloads: list[bytes],
    records: int,
    rate: float,
    reports: "_DeliveryReports",
) -> None:
    """Send ``records`` at ``rate`` (0: no limit) and wait for the last delivery report."""
    started_at = shown_at = time.perf_counter()
    number = 0
    while number < records:
        try:
            producer.produce(
                topic, payloads[number % len(payloads)], on_delivery=reports.on_delivery
            )
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
        # A delivery report ends a poll early, so one poll may not wait long enough.
        while rate and (ahead_s := started_at + number / rate - time.perf_counter()) > 0:
            producer.poll(ahead_s)
        if now - shown_at > perf_report.PROGRESS_INTERVAL_S:
            shown_at = now
            perf_report.show_progress(reports.latency.count, records, now - started_at)
    while producer.flush(perf_report.PROGRESS_INTERVAL_S):
        perf_report.show_progress(reports.latency.count, records, time.perf_counter() - started_at)


class _DeliveryReports:
    """The latencies of delivered records, and the failures."""

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
