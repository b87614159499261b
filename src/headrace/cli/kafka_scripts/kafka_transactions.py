"""``kafka-transactions``, translated into ``headrace transactions``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-transactions",
    "transactions",
    with_value=(
        *ADDRESS,
        "--command-config",
        "--transactional-id",
        "--transactional-id-pattern",
        "--duration-filter",
        "--topic",
        "--partition",
        "--start-offset",
        "--max-transaction-timeout",
    ),
    flags=("--help", "-h"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if given.flags:
        return Translation(["transactions", "--help"])
    topic, partition = given.last("--topic"), given.last("--partition")
    place = [f"{topic}:{partition}" if partition is not None else topic] if topic else []
    match given.positional:
        case ["list"]:
            filters = given.renamed("--transactional-id-pattern", "--pattern")
            for milliseconds in given.all("--duration-filter"):
                filters += ["--longer-than", f"{milliseconds}ms"]
            return translation(["transactions", "list", *filters], given)
        case ["describe"]:
            ids = given.all("--transactional-id")
            return translation(["transactions", "describe", *ids], given)
        case ["find-hanging"]:
            age = [
                word
                for minutes in given.all("--max-transaction-timeout")
                for word in ("--older-than", f"{minutes}m")
            ]
            return translation(["transactions", "find-hanging", *place, *age], given)
        case ["abort"]:
            start = given.renamed("--start-offset", "--start-offset")
            if not start or partition is None:
                raise values.wrong(
                    "kafka-transactions abort: give --topic, --partition and --start-offset"
                )
            return translation(["transactions", "abort", *place, *start, "--yes"], given)
    raise values.wrong(
        f"kafka-transactions: {' '.join(given.positional) or 'no action'} is not supported; "
        "expected list, describe, find-hanging or abort"
    )
