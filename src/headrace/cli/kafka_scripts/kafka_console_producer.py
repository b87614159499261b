"""``kafka-console-producer``, translated into ``headrace produce``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Given,
    Syntax,
    Translation,
    acks_option,
    addressed,
    client_settings,
    properties,
)

# Options that ``headrace produce`` itself does not have.
MARKS = (
    "--topic",
    "--broker-list",
    "--zookeeper",
    "--producer-property",
    "--property",
    "--reader-property",
    "--request-required-acks",
    "--compression-codec",
    "--sync",
)

# Options that are client settings today.
_SETTINGS = {
    "--batch-size": "batch.size",
    "--timeout": "linger.ms",
    "--message-send-max-retries": "retries",
    "--retry-backoff-ms": "retry.backoff.ms",
    "--request-timeout-ms": "request.timeout.ms",
}

_SYNTAX = Syntax(
    "kafka-console-producer",
    "produce",
    with_value=(
        *ADDRESS,
        *_SETTINGS,
        "--topic",
        "--producer-property",
        "--command-property",
        "--property",
        "--reader-property",
        "--producer.config",
        "--command-config",
        "--request-required-acks",
        "--compression-codec",
        "-X",
    ),
    flags=("--sync", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(_with_codec(arguments))
    if "--help" in given.flags:
        return Translation(["produce", "--help"])
    topic = _SYNTAX.topic(given)
    settings = client_settings(given, "--producer-property", "--command-property", "-X")
    acks = given.last("--request-required-acks") or settings.special.get("acks")
    codec = given.last("--compression-codec") or settings.special.get("compression.type")
    options = _line_format(given)
    if acks is not None:
        options += acks_option(acks)
    if codec is not None:
        options += ["--compression", codec]
    for old, new in _SETTINGS.items():
        options += [word for value in given.all(old) for word in ("-X", f"{new}={value}")]
    if "--sync" in given.flags:
        options += ["-X", "batch.num.messages=1"]
    return addressed(
        ["produce", topic, *options, *settings.options], given, settings.special, settings.notes
    )


def _with_codec(arguments: Sequence[str]) -> list[str]:
    """The arguments with gzip behind a --compression-codec that has no value."""
    words: list[str] = []
    for index, word in enumerate(arguments):
        words.append(word)
        following = arguments[index + 1 : index + 2]
        if word == "--compression-codec" and (not following or following[0].startswith("-")):
            words.append("gzip")
    return words


def _line_format(given: Given) -> list[str]:
    """The line reader's properties: where a line holds headers, key and value."""
    found = properties(given, "--property", "--reader-property")
    options = []
    if found.pop("parse.headers", "false") == "true":
        options += [
            "--header-separator",
            found.pop("headers.delimiter", "\\t"),
            "--header-pair-separator",
            found.pop("headers.key.separator", ":"),
        ]
    if found.pop("parse.key", "false") == "true":
        options += ["--key-separator", found.pop("key.separator", "\\t")]
    if "null.marker" in found:
        options += ["--null-marker", found.pop("null.marker")]
    # Without parse.key and parse.headers Kafka's reader ignores the separators too.
    for name in ("key.separator", "headers.delimiter", "headers.key.separator", "ignore.error"):
        found.pop(name, None)
    if found:
        raise values.wrong(
            f"kafka-console-producer: property {', '.join(sorted(found))} is not supported; "
            "'headrace produce --help' lists the options"
        )
    return options
