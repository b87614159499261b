"""``kafka-preferred-replica-election``, translated into ``headrace elect-leaders``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-preferred-replica-election",
    "elect-leaders",
    with_value=(*ADDRESS, "--admin.config", "--path-to-json-file"),
    flags=("--help",),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["elect-leaders", "--help"])
    places = given.renamed("--path-to-json-file", "--path-to-json-file") or ["--all"]
    clients = given.renamed("--admin.config", "--client-config")
    return translation(["elect-leaders", *places, *clients], given)
