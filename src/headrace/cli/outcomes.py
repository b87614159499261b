"""The results of a command that changes several things: one row each; one failure fails all."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from headrace.cli import output
from headrace.cli.client import Connection, error_name
from headrace.cli.options import Format


class Outcome(NamedTuple):
    result: Any  # a text such as "deleted", or the broker's response
    error: str | None = None  # Kafka's name of the error
    detail: str | None = None


def of(
    connection: Connection,
    future: Any,
    doing: str,
    done: str | None = None,
    tolerated: Collection[int] = (),
) -> Outcome:
    """The outcome of one request; its result is ``done``, or else the broker's response."""
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
    """Print rows that end with an Outcome; ``columns`` name the cells before its error."""
    names = [*columns, "error", "detail"]
    if format is Format.JSON:
        output.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table([name.upper().replace("_", "-") for name in names], rows)
    if any(row[-2] is not None for row in rows):
        output.leave(output.FAILED)
