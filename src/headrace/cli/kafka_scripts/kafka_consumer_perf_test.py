"""``kafka-consumer-perf-test``, translated into ``headrace perf consume``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka-consumer-perf-test",
    "perf consume",
    with_value=(
        *ADDRESS,
        "--topic",
        "--messages",
        "--num-records",
        "--timeout",
        "--command-config",
        "--consumer.config",
        "--group",
        "--fetch-size",
        "--reporting-interval",
        "--threads",
        "--num-fetch-threads",
    ),
    flags=("--show-detailed-stats", "--hide-header", "--print-metrics", "--from-latest", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["perf", "consume", "--help"])
    command = ["perf", "consume", _SYNTAX.topic(given)]
    command += given.renamed("--messages", "--records")
    command += given.renamed("--num-records", "--records")
    return translation(command, given)
