"""``kafka-console-consumer``, translated into ``headrace consume``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Given,
    Syntax,
    Translation,
    addressed,
    client_settings,
    properties,
)

# Options that ``headrace consume`` itself does not have.
MARKS = (
    "--topic",
    "--broker-list",
    "--zookeeper",
    "--consumer-property",
    "--property",
    "--formatter-property",
    "--max-messages",
    "--timeout-ms",
    "--isolation-level",
    "--new-consumer",
)

_RENAMED = {
    "--partition": "--partition",
    "--offset": "--offset",
    "--max-messages": "--max",
    "--format": "--format",
}
# The fields that Kafka's formatter prints, in its order, as the patterns of --format.
_FIELDS = {
    "timestamp": "%T",
    "partition": "%p",
    "offset": "%o",
    "headers": "%h",
    "key": "%k",
    "value": "%s",
}

_SYNTAX = Syntax(
    "kafka-console-consumer",
    "consume",
    with_value=(
        *ADDRESS,
        *_RENAMED,
        "--topic",
        "--timeout-ms",
        "--group",
        "--consumer-property",
        "--command-property",
        "--consumer.config",
        "--command-config",
        "--property",
        "--formatter-property",
        "--isolation-level",
        "--key-deserializer",
        "--value-deserializer",
        "-X",
    ),
    flags=("--from-beginning", "--new-consumer", "--skip-message-on-error", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["consume", "--help"])
    topic = _SYNTAX.topic(given)
    settings = client_settings(given, "--consumer-property", "--command-property", "-X")
    for name in given.all("--key-deserializer", "--value-deserializer"):
        if not name.endswith(("StringDeserializer", "ByteArrayDeserializer")):
            raise values.wrong(
                f"kafka-console-consumer: cannot run the Java class {name}; keys and values are "
                "printed as text, or with --format json"
            )
    options = ["--from-beginning"] if "--from-beginning" in given.flags else []
    for old, new in _RENAMED.items():
        options += given.renamed(old, new)
    if (timeout_ms := given.last("--timeout-ms")) is not None:
        if not timeout_ms.isdigit():
            raise values.wrong(
                f"kafka-console-consumer: --timeout-ms {timeout_ms}: expected milliseconds"
            )
        options += ["--timeout", f"{int(timeout_ms) / 1000:g}"]
    group = given.last("--group") or settings.special.get("group.id")
    if group is not None:
        options += ["--group", group]
    if (isolation := given.last("--isolation-level")) is not None:
        options += ["-X", f"isolation.level={isolation}"]
    options += _record_format(given)
    return addressed(
        ["consume", topic, *options, *settings.options], given, settings.special, settings.notes
    )


def _record_format(given: Given) -> list[str]:
    """The formatter's properties: which fields it prints, and what separates them."""
    found = properties(given, "--property", "--formatter-property")
    printed = [
        field
        for field in _FIELDS
        if found.pop(f"print.{field}", "true" if field == "value" else "false") == "true"
    ]
    separator = found.pop("key.separator", "\\t")
    line_end = found.pop("line.separator", "\\n")
    if found:
        raise values.wrong(
            f"kafka-console-consumer: property {', '.join(sorted(found))} is not supported; "
            "'headrace consume --help' lists the options"
        )
    if printed == ["value"] and line_end == "\\n":
        return []
    fields = separator.replace("%", "%%").join(_FIELDS[field] for field in printed)
    return ["--format", fields + line_end.replace("%", "%%")]
