"""The JSON files of kafka-reassign-partitions: topics to move, and assignments.

    {"version": 1, "topics": [{"topic": "orders"}]}
    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}

Headrace adds ``current_replicas`` to the entries that it writes: the replicas for which the plan
was made. A plan whose partitions have moved since is refused. Every mistake names its entry.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.cli import values
from headrace.cli.reassignment_plan import Assignment, Partition, name_of

_VERSION = 1
_ANY_DIRECTORY = "any"
TOPICS_EXAMPLE = '{"version": 1, "topics": [{"topic": "orders"}]}'
MOVES_EXAMPLE = (
    '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}'
)


class ReassignmentFile(NamedTuple):
    targets: Assignment
    planned_for: Assignment  # the replicas that the plan's author saw, where the file has them


def read_topics(file: Path) -> list[str]:
    """The topics of a file for ``generate``."""
    names = []
    for place, entry in _entries(file, "topics", TOPICS_EXAMPLE):
        name = _field(entry, place, "topic", str, "a string")
        if name in names:
            raise values.wrong(f"{place}: topic {name} is in the file twice")
        names.append(name)
    return names


def read_reassignment(file: Path) -> ReassignmentFile:
    """The assignments of a file for ``plan``, ``execute``, ``verify`` and ``cancel``."""
    found = ReassignmentFile({}, {})
    for place, entry in _entries(file, "partitions", MOVES_EXAMPLE):
        topic = _field(entry, place, "topic", str, "a string")
        number = _field(entry, place, "partition", int, "an integer")
        partition: Partition = (topic, number)
        if partition in found.targets:
            raise values.wrong(f"{place}: {name_of(partition)} is in the file twice")
        replicas = _brokers(entry, place, "replicas")
        _check_directories(entry, place, replicas)
        found.targets[partition] = replicas
        if "current_replicas" in entry:
            found.planned_for[partition] = _brokers(entry, place, "current_replicas")
    return found


def document(targets: Assignment, current: Assignment | None = None) -> dict[str, object]:
    """The content of a reassignment file; with ``current``, it is refused once it is outdated."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "replicas": replicas,
                **({} if current is None else {"current_replicas": current[topic, number]}),
            }
            for (topic, number), replicas in sorted(targets.items())
        ],
    }


def _entries(file: Path, key: str, example: str) -> list[tuple[str, dict[str, Any]]]:
    """Each entry with its place in the file, for messages."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as failure:
        raise values.wrong(f"{file}: {failure.strerror}") from None
    except UnicodeDecodeError:
        raise values.wrong(f"{file}: not a text file in UTF-8") from None
    except ValueError as failure:
        raise values.wrong(f"{file}: not a JSON document: {failure}") from None
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        raise values.wrong(f'{file} has no list "{key}"; expected a document such as {example}')
    if content.get("version", _VERSION) != _VERSION:
        version = json.dumps(content["version"])
        raise values.wrong(f'{file}: "version" is {version}; only {_VERSION} is known')
    entries: list[Any] = content[key]
    if not entries:
        raise values.wrong(f'{file}: "{key}" is empty; expected a document such as {example}')
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise values.wrong(f"{file}: {key}[{number}] is {json.dumps(entry)}, not an object")
    return [(f"{file}: {key}[{number}]", entry) for number, entry in enumerate(entries)]


def _field(entry: Mapping[str, Any], place: str, name: str, kind: type, expected: str) -> Any:
    if name not in entry:
        raise values.wrong(f'{place} has no "{name}"')
    value: Any = entry[name]
    if type(value) is not kind:  # True is no integer here
        raise values.wrong(f'{place}: "{name}" is {json.dumps(value)}, not {expected}')
    if value == "":
        raise values.wrong(f'{place}: "{name}" is empty')
    if isinstance(value, int) and value < 0:
        raise values.wrong(f'{place}: "{name}" is {value}; expected 0 or more')
    return value


def _brokers(entry: Mapping[str, Any], place: str, name: str) -> list[int]:
    replicas: list[Any] = _field(entry, place, name, list, "a list of broker IDs")
    if not replicas:
        raise values.wrong(f'{place}: "{name}" is empty; a partition needs at least one replica')
    for broker in replicas:
        if type(broker) is not int or broker < 0:
            raise values.wrong(f'{place}: "{name}" has {json.dumps(broker)}, not a broker ID')
        if replicas.count(broker) > 1:
            raise values.wrong(f'{place}: "{name}" has broker {broker} twice')
    return replicas


def _check_directories(entry: Mapping[str, Any], place: str, replicas: list[int]) -> None:
    if "log_dirs" not in entry:
        return
    directories: list[Any] = _field(entry, place, "log_dirs", list, "a list")
    if len(directories) != len(replicas):
        raise values.wrong(
            f'{place}: "log_dirs" has {len(directories)} entries for {len(replicas)} replicas'
        )
    for directory in directories:
        if directory != _ANY_DIRECTORY:
            raise values.wrong(
                f'{place}: "log_dirs" has {json.dumps(directory)}; this command supports only '
                '"any". Move partitions between the disks of a broker with Kafka\'s '
                "kafka-reassign-partitions"
            )
