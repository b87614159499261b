"""``kafka-dump-log``, translated into ``headrace dump-log``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import Syntax, Translation

_DEEP = ("--print-data-log", "--deep-iteration")
_VERIFY = ("--verify-index-only", "--index-sanity-check")

_SYNTAX = Syntax(
    "kafka-dump-log",
    "dump-log",
    with_value=("--files", "--max-message-size", "--max-bytes"),
    flags=(*_DEEP, *_VERIFY, "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["dump-log", "--help"])
    files = [path for text in given.all("--files") for path in text.split(",")]
    if not files:
        raise values.wrong("kafka-dump-log: --files is missing")
    deep = ["--deep"] if given.flags.intersection(_DEEP) else []
    verify = ["--verify-index"] if given.flags.intersection(_VERIFY) else []
    return Translation(["dump-log", *files, *deep, *verify])
