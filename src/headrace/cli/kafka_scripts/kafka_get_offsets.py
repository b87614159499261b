"""``kafka-get-offsets``, translated into ``headrace topics offsets``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Syntax,
    Translation,
    internal_option,
    translation,
)

_TIMES = {"-1": "latest", "-2": "earliest", "-3": "max-timestamp"}

_SYNTAX = Syntax(
    "kafka-get-offsets",
    "topics offsets",
    with_value=(
        *ADDRESS,
        "--topic",
        "--partitions",
        "--topic-partitions",
        "--time",
        "--command-config",
    ),
    flags=("--exclude-internal-topics", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["topics", "offsets", "--help"])
    partitions = given.last("--partitions")
    names = [f"{name}:{partitions}" if partitions else name for name in given.all("--topic")]
    names += [text for value in given.all("--topic-partitions") for text in value.split(",")]
    at = given.last("--time") or "latest"
    at = _TIMES.get(at, at)
    if at.startswith("-") or at in ("earliest-local", "latest-tiered"):
        raise values.wrong(
            f"kafka-get-offsets: --time {at} refers to tiered storage, which is not supported"
        )
    command = ["topics", "offsets", *names, *internal_option(given), "--time", at, "--plain"]
    return translation(command, given)
