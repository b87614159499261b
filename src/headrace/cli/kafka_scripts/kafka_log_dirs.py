"""``kafka-log-dirs``, translated into ``headrace log-dirs``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Syntax,
    Translation,
    internal_option,
    translation,
)

_SYNTAX = Syntax(
    "kafka-log-dirs",
    "log-dirs",
    with_value=(*ADDRESS, "--topic-list", "--command-config"),
    flags=("--describe", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["log-dirs", "--help"])
    # Only in this script --broker-list holds broker ids, not addresses.
    ids = [text for value in given.values.pop("--broker-list", []) for text in value.split(",")]
    brokers = [word for broker_id in ids for word in ("--broker", broker_id)]
    topics = [name for text in given.all("--topic-list") for name in text.split(",")]
    command = ["log-dirs", *topics, *internal_option(given), *brokers, "--format", "json"]
    return translation(command, given)
