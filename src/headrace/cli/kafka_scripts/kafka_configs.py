"""``kafka-configs``, translated into ``headrace configs``."""

import re
from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Given, Syntax, Translation, translation

ACTIONS = ("--alter", "--describe")
# Options that ``headrace configs`` itself does not have.
MARKS = (*ACTIONS, "--entity-type", "--add-config", "--add-config-file", "--delete-config")

_ENTITY_OPTIONS = {
    "--topic": "topic",
    "--broker": "broker",
    "--broker-logger": "broker-logger",
    "--group": "group",
}
_ENTITY_TYPES = {
    "topics": "topic",
    "brokers": "broker",
    "broker-loggers": "broker-logger",
    "groups": "group",
}

_SYNTAX = Syntax(
    "kafka-configs",
    "configs",
    with_value=(
        *ADDRESS,
        *_ENTITY_OPTIONS,
        "--entity-type",
        "--entity-name",
        "--add-config",
        "--add-config-file",
        "--delete-config",
        "--command-config",
        "--format",
        "-X",
    ),
    flags=(*ACTIONS, "--all", "--entity-default", "--broker-defaults", "--force", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["configs", "--help"])
    action = _SYNTAX.one_of(given, ACTIONS)
    entity = _entity(given)
    kept = [*given.renamed("--format", "--format"), *given.renamed("-X", "-X")]
    if action == "--describe":
        changed = [] if "--all" in given.flags else ["--changed"]
        return translation(["configs", "get", *entity, *changed, *kept], given)
    added = [pair for text in given.all("--add-config") for pair in _pairs(text)]
    removed = [key for text in given.all("--delete-config") for key in text.split(",")]
    file = given.renamed("--add-config-file", "--file")
    if added and file:
        raise values.wrong("kafka-configs --alter: give --add-config or --add-config-file")
    if added or file:
        unset = [word for key in removed for word in ("--unset", key)]
        return translation(["configs", "set", *entity, *added, *file, *unset, *kept], given)
    if removed:
        return translation(["configs", "unset", *entity, *removed, *kept], given)
    raise values.wrong(
        "kafka-configs --alter: give --add-config, --add-config-file or --delete-config"
    )


def _entity(given: Given) -> list[str]:
    """The kind and the name that ``headrace configs`` takes."""
    for option, kind in _ENTITY_OPTIONS.items():
        if (name := given.last(option)) is not None:
            return [kind, name]
    if "--broker-defaults" in given.flags:
        return ["broker", "default"]
    entity_type = given.last("--entity-type")
    if entity_type is None:
        raise values.wrong("kafka-configs: --entity-type is missing")
    if entity_type not in _ENTITY_TYPES:
        raise values.wrong(
            f"kafka-configs: --entity-type {entity_type} is not supported; "
            f"expected {', '.join(_ENTITY_TYPES)}"
        )
    if entity_type == "brokers" and "--entity-default" in given.flags:
        return ["broker", "default"]
    name = given.last("--entity-name")
    if name is None:
        raise values.wrong("kafka-configs: --entity-name is missing")
    return [_ENTITY_TYPES[entity_type], name]


def _pairs(text: str) -> list[str]:
    """``a=1,b=[x,y]`` as ``a=1`` and ``b=x,y``: brackets enclose a value that contains commas."""
    return [
        f"{name.strip()}={bracketed or plain}"
        for name, bracketed, plain in re.findall(r"([^=,]+)=(?:\[([^\]]*)\]|([^,]*)),?", text)
    ]
