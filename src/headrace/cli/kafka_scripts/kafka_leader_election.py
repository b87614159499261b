"""``kafka-leader-election``, translated into ``headrace elect-leaders``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-leader-election",
    "elect-leaders",
    with_value=(
        *ADDRESS,
        "--admin.config",
        "--command-config",
        "--election-type",
        "--topic",
        "--partition",
        "--path-to-json-file",
    ),
    flags=("--all-topic-partitions", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["elect-leaders", "--help"])
    kind = (given.last("--election-type") or "preferred").lower()
    places = [
        *given.renamed("--topic", "--topic"),
        *given.renamed("--partition", "--partition"),
        *given.renamed("--path-to-json-file", "--path-to-json-file"),
        *(["--all"] if "--all-topic-partitions" in given.flags else []),
    ]
    clients = given.renamed("--admin.config", "--client-config")
    return translation(["elect-leaders", "--type", kind, *places, *clients], given)
