"""``kafka-broker-api-versions``, translated into ``headrace brokers api-versions``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-broker-api-versions",
    "brokers api-versions",
    with_value=(*ADDRESS, "--command-config"),
    flags=("--help",),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["brokers", "api-versions", "--help"])
    return translation(["brokers", "api-versions", "--plain"], given)
