"""The partitions that arguments name: ``orders``, ``orders:0``, ``orders:0,2-4``, or all."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.cli import values
from headrace.cli.client import Connection
from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.core.topics import is_internal

Partition = tuple[str, int]  # topic and number


def named(
    connection: Connection, texts: Iterable[str], *, internal: bool = False
) -> dict[Partition, int]:
    """As ``find``; CommandFailed if a topic or a partition does not exist."""
    found, failures = find(connection, texts, internal=internal)
    if failures:
        raise CommandFailed(failures[0])
    return found


def find(
    connection: Connection, texts: Iterable[str], *, internal: bool = False
) -> tuple[dict[Partition, int], list[str]]:
    """The partitions that ``texts`` name, each with its leader, and why others were not found.

    Without texts, all partitions; ``internal`` includes those of internal topics.
    """
    topics = connection.metadata().topics
    found: dict[Partition, int] = {}
    failures = []
    for text in texts or shown(topics, internal):
        name, colon, numbers = text.partition(":")
        try:
            check_topics(connection, [name], topics)
            existing = topics[name].partitions
            wanted = values.numbers(numbers, f"partitions of {name}") if colon else sorted(existing)
            check_numbers(name, wanted, existing)
        except CommandFailed as failure:
            if failure.status == WRONG_USAGE:
                raise
            failures.append(str(failure))
            continue
        found.update({(name, number): existing[number].leader for number in wanted})
    return found, failures


def shown(topics: Iterable[str], internal: bool) -> list[str]:
    """The topics that a command shows when none is named; internal ones only on request."""
    return sorted(name for name in topics if internal or not is_internal(name))


def matching(topics: Iterable[str], pattern: str) -> list[str]:
    """The topics whose whole name matches the regular expression. There may be none."""
    try:
        compiled = re.compile(pattern)
    except re.error as failure:
        raise values.wrong(f"--matching {pattern!r}: {failure}") from None
    return sorted(name for name in topics if compiled.fullmatch(name))


def chosen(names: Sequence[str] | None, pattern: str | None, topics: Iterable[str]) -> list[str]:
    """The topics that a command names, or those among ``topics`` that ``--matching`` does."""
    if pattern is None:
        return list(names or ())
    if names:
        raise values.wrong("give topics or --matching, not both")
    found = matching(topics, pattern)
    if not found:
        raise CommandFailed(
            f"no topic matches {pattern!r}; 'headrace topics list' lists the topics"
        )
    return found


def check_topics(
    connection: Connection, names: Iterable[str], topics: Iterable[str] | None = None
) -> None:
    """Refuse topics that do not exist; ``topics`` are the existing ones, if known."""
    known: Any = connection.metadata().topics if topics is None else topics
    for name in names:
        if name not in known:
            raise CommandFailed(no_such_topic(connection, name))


def no_such_topic(connection: Connection, name: str) -> str:
    """What every command says about a topic that does not exist."""
    return (
        f"topic {name} does not exist at {connection.bootstrap}; "
        "'headrace topics list' lists the topics"
    )


def check_topic_name(topic: str, command: str) -> None:
    """Refuse TOPIC:PARTITION where the command has an option for partitions."""
    name, colon, numbers = topic.partition(":")
    if colon:
        raise values.wrong(
            f"{topic} is not a topic name; use "
            f"'headrace {command} {name} --partition {numbers or 'N'}' to choose partitions"
        )


def check_numbers(topic: str, wanted: Iterable[int], existing: Iterable[int]) -> None:
    known = set(existing)
    for number in wanted:
        if number not in known:
            raise CommandFailed(
                f"topic {topic} has no partition {number}; "
                f"it has {values.counted(len(known), 'partition')}"
            )
