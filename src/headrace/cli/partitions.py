"""Which partitions a command is about: ``orders``, ``orders:0``, ``orders:0,2-4``, or all."""

from collections.abc import Iterable
from typing import Any

from headrace.cli import values
from headrace.cli.client import Connection
from headrace.cli.output import CommandFailed
from headrace.core.topics import is_internal

Partition = tuple[str, int]  # topic and number


def named(
    connection: Connection, texts: Iterable[str], *, internal: bool = False
) -> dict[Partition, int]:
    """The partitions that ``texts`` mean, in that order, each with its leader.

    Without texts all there are; ``internal`` says whether those of internal topics too.
    """
    topics = connection.metadata().topics
    found: dict[Partition, int] = {}
    for text in texts or shown(topics, internal):
        name, colon, numbers = text.partition(":")
        check_topics(connection, [name], topics)
        existing = topics[name].partitions
        wanted = values.numbers(numbers, f"partitions of {name}") if colon else sorted(existing)
        check_numbers(name, wanted, existing)
        found.update({(name, number): existing[number].leader for number in wanted})
    return found


def shown(topics: Iterable[str], internal: bool) -> list[str]:
    """Those that a command speaks of when it is told no names: internal ones drown the others."""
    return sorted(name for name in topics if internal or not is_internal(name))


def check_topics(
    connection: Connection, names: Iterable[str], topics: Iterable[str] | None = None
) -> None:
    """Refuse a topic that is not there; ``topics`` are those that are, if that is known."""
    known: Any = connection.metadata().topics if topics is None else topics
    for name in names:
        if name not in known:
            raise CommandFailed(no_such_topic(connection, name))


def no_such_topic(connection: Connection, name: str) -> str:
    """What every command says of a topic that is not there."""
    return (
        f"topic {name} does not exist at {connection.bootstrap}; "
        "'headrace topics list' shows those that do"
    )


def check_numbers(topic: str, wanted: Iterable[int], existing: Iterable[int]) -> None:
    known = set(existing)
    for number in wanted:
        if number not in known:
            raise CommandFailed(
                f"topic {topic} has {values.counted(len(known), 'partition')}, "
                f"no partition {number}"
            )
