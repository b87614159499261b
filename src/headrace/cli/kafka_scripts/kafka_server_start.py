"""``kafka-server-start``, translated into ``headrace serve``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import Syntax, Translation

_SYNTAX = Syntax(
    "kafka-server-start",
    "serve",
    with_value=("--override", "-name"),
    flags=("-daemon", "-loggc", "--help", "--version"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["serve", "--help"])
    if "--version" in given.flags:
        return Translation(["version"])
    daemon = ["-daemon"] if "-daemon" in given.flags else []
    overrides = given.renamed("--override", "-X")
    return Translation(["serve", *given.positional, *overrides, *daemon])
