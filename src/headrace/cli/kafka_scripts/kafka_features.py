"""``kafka-features``, translated into ``headrace features``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-features",
    "features",
    with_value=(*ADDRESS, "--command-config", "--feature"),
    flags=("--dry-run", "--unsafe", "--help", "-h"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if {"--help", "-h"} & given.flags:
        return Translation(["features", "--help"])
    levels = [text for value in given.all("--feature") for text in value.split(",")]
    flags = [flag for flag in ("--dry-run", "--unsafe") if flag in given.flags]
    match given.positional:
        case ["describe"]:
            return translation(["features", "describe"], given)
        case ["upgrade" | "downgrade" as verb] if levels:
            return translation(["features", verb, *levels, *flags], given)
        case ["disable"] if levels:
            zero = [f"{name}=0" for name in levels]
            return translation(["features", "downgrade", *zero, *flags], given)
    raise values.wrong(
        "kafka-features: expected describe, or upgrade, downgrade or disable with --feature"
    )
