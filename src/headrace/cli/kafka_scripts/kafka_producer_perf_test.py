"""``kafka-producer-perf-test``, translated into ``headrace perf produce``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Syntax,
    Translation,
    acks_option,
    addressed,
    client_settings,
)

_SYNTAX = Syntax(
    "kafka-producer-perf-test",
    "perf produce",
    with_value=(
        *ADDRESS,
        "--topic",
        "--num-records",
        "--record-size",
        "--throughput",
        "--producer.config",
        "--command-config",
        "--command-property",
    ),
    flags=("--print-metrics", "--help"),
)


def translate(arguments: Sequence[str]) -> Translation:
    rest, settings_given = _without_producer_props(arguments)
    given = _SYNTAX.parse(rest)
    if "--help" in given.flags:
        return Translation(["perf", "produce", "--help"])
    topic = _SYNTAX.topic(given)
    given.values.setdefault("--command-property", []).extend(settings_given)
    settings = client_settings(given, "--command-property")
    command = ["perf", "produce", topic]
    command += given.renamed("--num-records", "--records")
    command += given.renamed("--record-size", "--size")
    throughput = given.last("--throughput")
    if throughput is not None and not throughput.startswith("-"):
        command += ["--rate", throughput]
    if "acks" in settings.special:
        command += acks_option(settings.special["acks"])
    if "compression.type" in settings.special:
        command += ["--compression", settings.special["compression.type"]]
    return addressed([*command, *settings.options], given, settings.special, settings.notes)


def _without_producer_props(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments, and the values of --producer-props, which takes all up to the next option."""
    words = list(arguments)
    if "--producer-props" not in words:
        return words, []
    start = words.index("--producer-props")
    end = start + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    return words[:start] + words[end:], words[start + 1 : end]
