"""``kafka-delete-records``, translated into ``headrace topics delete-records``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-delete-records",
    "topics delete-records",
    with_value=(*ADDRESS, "--offset-json-file", "--command-config"),
    flags=("--help",),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["topics", "delete-records", "--help"])
    file = given.last("--offset-json-file")
    if file is None:
        raise values.wrong("kafka-delete-records: --offset-json-file is missing")
    return translation(["topics", "delete-records", "--file", file, "--yes"], given)
