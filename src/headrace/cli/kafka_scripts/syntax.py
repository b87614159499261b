"""Parse a script's options, and translate the options that every script has. Pure.

``--zookeeper`` names the cluster's state, not a broker. The translation keeps it, and
``zookeeper_brokers`` asks that ZooKeeper for the brokers.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.cli import values

# How every script names the broker.
ADDRESS = ("--bootstrap-server", "--broker-list", "--zookeeper", "-b")
_IGNORED_PROPERTIES = {
    "key.serializer",
    "value.serializer",
    "serializer.class",
    "key.serializer.class",
    "partitioner.class",
    "producer.type",
    "key.deserializer",
    "value.deserializer",
}
# Client settings that Kafka has renamed since, with their present names.
_RENAMED_PROPERTIES = {
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "auto.commit.enable": "enable.auto.commit",
    "consumer.id": "client.id",
}


class Translation(NamedTuple):
    """The arguments of ``headrace``, and notes on what the user should write instead."""

    arguments: list[str]
    notes: tuple[str, ...] = ()
    zookeeper: str | None = None  # knows the brokers' addresses, which the user did not give


class Given(NamedTuple):
    """A script's options as the user gave them."""

    values: dict[str, list[str]]
    flags: set[str]
    positional: list[str]

    def last(self, name: str) -> str | None:
        found = self.values.get(name)
        return found[-1] if found else None

    def all(self, *names: str) -> list[str]:
        return [value for name in names for value in self.values.get(name, [])]

    def renamed(self, old: str, new: str) -> list[str]:
        """Each value of the option ``old`` behind the option ``new``."""
        return [word for value in self.all(old) for word in (new, value)]


class Syntax(NamedTuple):
    """The options of one script, and the Headrace command that replaces it."""

    script: str
    command: str
    with_value: tuple[str, ...]
    flags: tuple[str, ...]

    def parse(self, arguments: Sequence[str]) -> Given:
        given = Given({}, set(), [])
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            if word in self.flags:
                given.flags.add(word)
            elif name in self.with_value and equals:
                given.values.setdefault(name, []).append(value)
            elif word in self.with_value:
                if not rest:
                    raise values.wrong(f"{self.script}: {word} needs a value")
                given.values.setdefault(word, []).append(rest.pop(0))
            elif word.startswith("-"):
                raise values.wrong(
                    f"{self.script}: {word} is not supported; "
                    f"'headrace {self.command} --help' lists the options"
                )
            else:
                given.positional.append(word)
        return given

    def one_of(self, given: Given, choices: Sequence[str]) -> str:
        """The one action among ``choices`` that the user gave."""
        chosen = [name for name in choices if name in given.flags]
        if len(chosen) != 1:
            raise values.wrong(f"{self.script}: give one of {', '.join(choices)}")
        return chosen[0]

    def topic(self, given: Given) -> str:
        """The only topic, as --topic or as an argument."""
        names = [*given.all("--topic"), *given.positional]
        if len(names) != 1:
            raise values.wrong(f"{self.script}: give one --topic")
        return names[0]


class ClientSettings(NamedTuple):
    """Client settings that a script was given as properties or in files."""

    options: list[str]  # as -X and --client-config
    special: dict[str, str]  # options with an equivalent of their own
    notes: list[str]


def client_settings(given: Given, *names: str) -> ClientSettings:
    """The settings that the options ``names`` hold, and the files that any option names."""
    found = ClientSettings([], {}, [])
    for text in given.all(*names):
        name, _, value = text.partition("=")
        name = _RENAMED_PROPERTIES.get(name, name)
        if name in ("group.id", "acks", "compression.type", "bootstrap.servers"):
            found.special[name] = value
        elif name == "metadata.broker.list":
            found.special["bootstrap.servers"] = value
        elif name in _IGNORED_PROPERTIES:
            found.notes.append(f"{name} has no effect: records are bytes here")
        else:
            found.options.extend(("-X", f"{name}={value}"))
    for path in given.all("--command-config", "--producer.config", "--consumer.config"):
        found.options.extend(("--client-config", path))
    return found


def acks_option(acks: str) -> list[str]:
    return ["--acks", "all" if acks == "-1" else acks]


def internal_option(given: Given) -> list[str]:
    """Kafka's scripts include internal topics by default; Headrace's commands do not."""
    excluded = {"--exclude-internal", "--exclude-internal-topics"} & given.flags
    named = given.all("--topic", "--topic-partitions", "--topic-list")
    return [] if excluded or named else ["--internal"]


def translation(command: Sequence[str], given: Given) -> Translation:
    """``command`` with the client's settings and the broker's address."""
    return addressed([*command, *client_settings(given).options], given)


def addressed(
    command: Sequence[str],
    given: Given,
    special: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Translation:
    """``command`` with the broker's address, which may be one of the ``special`` settings."""
    if special and "bootstrap.servers" in special:
        given.values.setdefault("--bootstrap-server", [special["bootstrap.servers"]])
    address, address_notes = _address(given)
    zookeeper = None if address else given.last("--zookeeper")
    return Translation([*command, *address], (*address_notes, *notes), zookeeper)


def _address(given: Given) -> tuple[list[str], list[str]]:
    """The option that names the broker, and notes on how the user named it."""
    notes = []
    bootstrap = given.all("--bootstrap-server", "-b")
    if given.all("--broker-list"):
        notes.append("--broker-list is now --bootstrap-server (-b)")
        bootstrap = bootstrap or given.all("--broker-list")
    if given.all("--zookeeper"):
        notes.append("--zookeeper was removed; name a broker with --bootstrap-server (-b)")
    return (["-b", bootstrap[-1]] if bootstrap else []), notes


def quoted(command: Sequence[str]) -> str:
    """A command line for an error message."""
    return f"'headrace {shlex.join(command)}'"


def properties(given: Given, *names: str) -> dict[str, str]:
    """The ``key=value`` texts of the options ``names``; the last of each key wins."""
    return dict(text.partition("=")[::2] for text in given.all(*names))


def has_pattern(texts: Sequence[str]) -> bool:
    """Whether one of the topics is a regular expression; a dot alone makes none."""
    return not all(re.fullmatch(r"[a-zA-Z0-9._,-]+", text) for text in texts)


def pattern_of(texts: Sequence[str]) -> str:
    """Lists of topics and regular expressions as Kafka combines them: one of them matches."""
    return "|".join(
        re.escape(part).replace(r"\-", "-") if not has_pattern([part]) else part
        for text in texts
        for part in text.replace(" ", "").split(",")
    )


def topic_names(script: str, texts: Sequence[str]) -> list[str]:
    """The topics in comma-separated lists; a pattern is refused."""
    names = [name for text in texts for name in text.split(",")]
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9._-]+", name):
            raise values.wrong(
                f"{script}: {name!r} is a pattern; name each topic "
                "('headrace topics list --names' prints the names)"
            )
    return names
