"""What became of each thing that a command was to change: a row each, failure if one failed."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from headrace.cli import output
from headrace.cli.client import Connection, error_name
from headrace.cli.options import Format


class Outcome(NamedTuple):
    result: Any  # a word such as "deleted", or what the broker answered
    error: str | None = None  # Kafka's name of it
    detail: str | None = None


def of(
    connection: Connection,
    future: Any,
    doing: str,
    done: str | None = None,
    tolerated: Collection[int] = (),
) -> Outcome:
    """What came of one request; ``done`` in place of the answer where there is none to show."""
    try:
        answer = connection.answer(future, doing)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() in tolerated:
            return Outcome("unchanged")
        detail = str(error.str()).removeprefix("Broker: ")
        return Outcome(None if done is None else "failed", error_name(error), detail)
    return Outcome(answer if done is None else done)


def show(columns: Sequence[str], rows: Sequence[tuple[object, ...]], format: Format) -> None:
    """Rows whose last cells are an Outcome's; the columns before ``error`` are the caller's."""
    names = [*columns, "error", "detail"]
    if format is Format.JSON:
        output.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table([name.upper().replace("_", "-") for name in names], rows)
    if any(row[-2] is not None for row in rows):
        output.leave(output.FAILED)
