"""``kafka-consumer-groups``, translated into ``headrace groups``."""

import re
from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Given, Syntax, Translation, translation

ACTIONS = ("--list", "--describe", "--reset-offsets", "--delete", "--delete-offsets")

_RESET_VALUES = ("--to-offset", "--to-datetime")
_RESET_FLAGS = ("--to-earliest", "--to-latest", "--to-current")

_SYNTAX = Syntax(
    "kafka-consumer-groups",
    "groups",
    with_value=(
        *ADDRESS,
        "--group",
        "--topic",
        "--timeout",
        "--command-config",
        *_RESET_VALUES,
        "--by-duration",
        "--shift-by",
        "--from-file",
    ),
    flags=(
        *ACTIONS,
        *_RESET_FLAGS,
        "--offsets",
        "--members",
        "--state",
        "--type",
        "--verbose",
        "--all-topics",
        "--all-groups",
        "--execute",
        "--dry-run",
        "--new-consumer",
        "--help",
    ),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["groups", "--help"])
    if given.positional:
        raise values.wrong(
            f"kafka-consumer-groups: unexpected argument {given.positional[0]!r}; "
            "'headrace groups list' shows all groups with state and type"
        )
    action = _SYNTAX.one_of(given, ACTIONS)
    if action == "--list":
        # Scripts read these lines; with --state or --type Kafka's tool prints columns too.
        names = [] if {"--state", "--type"} & given.flags else ["--names"]
        return translation(["groups", "list", *names], given)
    if "--state" in given.flags:
        raise values.wrong(
            "kafka-consumer-groups --describe --state: use 'headrace groups list', which shows "
            "the state of all groups"
        )
    groups = given.all("--group")
    if action == "--describe" and {"--all-groups", "--members"} & given.flags == {"--all-groups"}:
        return translation(["groups", "describe", "--all"], given)
    if not groups:
        raise values.wrong(f"kafka-consumer-groups {action}: --group is missing")
    match action:
        case "--describe" if "--members" not in given.flags:
            return translation(["groups", "describe", *groups], given)
        case "--delete":
            return translation(["groups", "delete", *groups], given)
    if len(groups) > 1:
        raise values.wrong(f"kafka-consumer-groups {action}: give one --group at a time")
    topics = given.renamed("--topic", "--topic")
    match action:
        case "--describe":
            return translation(["groups", "members", *groups], given)
        case "--delete-offsets":
            return translation(["groups", "delete-offsets", *groups, *topics], given)
    execute = ["--execute"] if "--execute" in given.flags else []
    return translation(["groups", "reset", *groups, *topics, *_target(given), *execute], given)


def _target(given: Given) -> list[str]:
    """Where to move the group's offsets, as the options of ``groups reset``."""
    targets = [["--to", flag.removeprefix("--to-")] for flag in _RESET_FLAGS if flag in given.flags]
    targets += [["--to", value] for value in given.all(*_RESET_VALUES)]
    targets += [["--to", _duration(value)] for value in given.all("--by-duration")]
    targets += [["--shift", value] for value in given.all("--shift-by")]
    targets += [["--from-file", value] for value in given.all("--from-file")]
    if len(targets) != 1:
        raise values.wrong(
            "kafka-consumer-groups --reset-offsets: give one target; "
            "'headrace groups reset --help' lists the options"
        )
    return targets[0]


def _duration(text: str) -> str:
    """``P1DT2H30M`` as ``1d2h30m``."""
    parts = re.fullmatch(r"P(?=.)(\d+D)?(?:T(?=\d)(\d+H)?(\d+M)?(\d+(?:\.\d+)?S)?)?", text.upper())
    if parts is None:
        raise values.wrong(
            f"kafka-consumer-groups: --by-duration {text}: expected ISO 8601, such as PT2H"
        )
    return "".join(part for part in parts.groups() if part).lower()
