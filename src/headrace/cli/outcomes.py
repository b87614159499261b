"""The results of a command that changes several things: one row each; one failure fails all."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from headrace.cli import output
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, error_name
from headrace.cli.options import Format
from headrace.model.errors import ErrorCode

_RETRY_PAUSE_S = 0.1


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


def of_controller(
    connection: Connection,
    send: Callable[[list[str]], Mapping[str, Any]],
    names: Sequence[str],
    done: str,
    tolerated: Collection[int] = (),
) -> dict[str, Outcome]:
    """The outcome of a request to the controller for each topic.

    The client sends it to the controller that it knows. If that broker is not the controller any
    more, the request is sent again to the next one.
    """
    found: dict[str, Outcome] = {}
    refused = list(names)
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        for name, future in send(refused).items():
            found[name] = of(connection, future, f"topic {name}", done, tolerated)
        refused = [name for name in refused if found[name].error == ErrorCode.NOT_CONTROLLER.name]
        if not refused or time.monotonic() > deadline:
            return found
        time.sleep(_RETRY_PAUSE_S)
        connection.metadata()  # names the present controller


def show(columns: Sequence[str], rows: Sequence[tuple[object, ...]], format: Format) -> None:
    """Print rows that end with an Outcome; ``columns`` name the cells before its error."""
    names = [*columns, "error", "detail"]
    if format is Format.JSON:
        output.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table([name.upper().replace("_", "-") for name in names], rows)
    if any(row[-2] is not None for row in rows):
        output.leave(output.FAILED)
