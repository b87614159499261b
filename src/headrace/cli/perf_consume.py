"""``headrace perf consume``: the throughput of consuming a topic from its beginning."""

import contextlib
import time
from typing import Annotated

import typer
from confluent_kafka import TopicPartition

from headrace.cli import offsets as offsets_of
from headrace.cli import output, perf_report
from headrace.cli.client import Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    Topic,
)
from headrace.cli.partitions import named

_IDLE_LIMIT_S = 10.0


def perf_consume(
    topic: Topic,
    records: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--records",
            metavar="N",
            min=1,
            help="Number of records to read; all by default.",
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
            f"topic {topic} has {available} records, fewer than {wanted}; "
            f"'headrace perf produce {topic}' adds records"
        )
    consumer = connection.consumer(
        {"auto.offset.reset": "earliest", "queued.min.messages": 500_000, "check.crcs": True}
    )
    consumer.assign([TopicPartition(*key, first[key].offset or 0) for key in partitions])
    count = size = 0
    started_at = shown_at = last_at = time.perf_counter()
    first_at: float | None = None
    with contextlib.closing(consumer), perf_report.measuring() as measurement:
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
                # Offsets of transaction markers and of compacted records are never delivered.
                break
            if now - shown_at > perf_report.PROGRESS_INTERVAL_S:
                shown_at = now
                perf_report.show_progress(count, wanted, now - started_at)
    perf_report.show(
        format,
        {
            "topic": topic,
            "records": count,
            "first_record_ms": round(((first_at or last_at) - started_at) * 1000, 1),
            **perf_report.throughput(count, size, last_at - started_at),
        },
        {},
    )
    measurement.leave_if_interrupted()
