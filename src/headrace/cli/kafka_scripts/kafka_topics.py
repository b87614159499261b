"""``kafka-topics``, translated into ``headrace topics`` and ``headrace configs``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Given,
    Syntax,
    Translation,
    has_pattern,
    internal_option,
    pattern_of,
    quoted,
    topic_names,
    translation,
)

ACTIONS = ("--create", "--list", "--describe", "--alter", "--delete")
# These accept a regular expression as a topic. --list prints no error if the topic is missing.
_WITH_PATTERN = ("--list", "--describe", "--delete")
# Filters of --describe with their names in ``headrace topics describe``.
_FILTERS = {
    "--under-replicated-partitions": "--under-replicated",
    "--unavailable-partitions": "--unavailable",
    "--under-min-isr-partitions": "--under-min-isr",
    "--at-min-isr-partitions": "--at-min-isr",
}

_SYNTAX = Syntax(
    "kafka-topics",
    "topics",
    with_value=(
        *ADDRESS,
        "--topic",
        "--partitions",
        "--replication-factor",
        "--config",
        "--delete-config",
        "--replica-assignment",
        "--command-config",
        "--format",
        "-X",
    ),
    flags=(
        *ACTIONS,
        *_FILTERS,
        "--if-exists",
        "--if-not-exists",
        "--exclude-internal",
        "--force",
        "--disable-rack-aware",
        "--help",
    ),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["topics", "--help"])
    action = _SYNTAX.one_of(given, ACTIONS)
    topics = given.all("--topic")
    if action in _WITH_PATTERN and (has_pattern(topics) or (topics and action == "--list")):
        names = ["--matching", pattern_of(topics)]
    else:
        names = topic_names(_SYNTAX.script, topics)
    kept = [*given.renamed("--format", "--format"), *given.renamed("-X", "-X")]
    match action:
        case "--list":
            internal = ["--no-internal"] if "--exclude-internal" in given.flags else []
            return translation(["topics", "list", "--names", *names, *internal, *kept], given)
        case "--describe":
            internal = internal_option(given)
            filters = [ours for theirs, ours in _FILTERS.items() if theirs in given.flags]
            return translation(["topics", "describe", *names, *internal, *filters, *kept], given)
    if not names:
        raise values.wrong(f"kafka-topics {action}: --topic is missing")
    match action:
        case "--create":
            shape = [
                *given.renamed("--partitions", "--partitions"),
                *given.renamed("--replication-factor", "--replicas"),
                *given.renamed("--replica-assignment", "--replica-assignment"),
                *given.renamed("--config", "--config"),
            ]
            if_not_exists = ["--if-not-exists"] if "--if-not-exists" in given.flags else []
            return translation(["topics", "create", *names, *shape, *if_not_exists, *kept], given)
        case "--delete":
            if_exists = ["--if-exists"] if "--if-exists" in given.flags else []
            return translation(["topics", "delete", *names, "--yes", *if_exists, *kept], given)
    return _alter(given, names, kept)


def _alter(given: Given, names: list[str], kept: list[str]) -> Translation:
    """Partitions belong to the topic's command; Kafka moved its settings to kafka-configs."""
    added, removed = given.all("--config"), given.all("--delete-config")
    partitions = given.renamed("--partitions", "--partitions")
    if partitions:
        partitions += given.renamed("--replica-assignment", "--replica-assignment")
    changes = []
    if partitions:
        changes.append(["topics", "alter", names[0], *partitions, *kept])
    if added:
        unset = [word for key in removed for word in ("--unset", key)]
        changes.append(["configs", "set", "topic", names[0], *added, *unset, *kept])
    elif removed:
        changes.append(["configs", "unset", "topic", names[0], *removed, *kept])
    if not changes:
        raise values.wrong("kafka-topics --alter: give --partitions, --config or --delete-config")
    if len(changes) > 1 or len(names) > 1:
        raise values.wrong(
            "kafka-topics --alter: make one change to one topic at a time; use "
            + " and ".join(quoted(change) for change in changes)
        )
    translated = translation(changes[0], given)
    if added or removed:
        note = f"topic settings are changed with {quoted(changes[0][:2])}"
        return translated._replace(notes=(*translated.notes, note))
    return translated
