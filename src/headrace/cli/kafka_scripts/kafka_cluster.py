"""``kafka-cluster``, translated into ``headrace cluster``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-cluster",
    "cluster",
    with_value=(*ADDRESS, "--config", "--command-config"),
    flags=("--help", "-h"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if {"--help", "-h"} & given.flags:
        return Translation(["cluster", "--help"])
    if given.positional != ["cluster-id"]:
        raise values.wrong(
            f"kafka-cluster: {' '.join(given.positional) or 'no action'} is not supported; "
            "expected cluster-id"
        )
    clients = given.renamed("--config", "--client-config")
    return translation(["cluster", "id", *clients], given)
