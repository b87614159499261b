"""``kafka-replica-verification``, translated into ``headrace verify-replicas``."""

from collections.abc import Sequence

from headrace.cli.kafka_scripts.syntax import (
    ADDRESS,
    Syntax,
    Translation,
    has_pattern,
    pattern_of,
    topic_names,
    translation,
)

_TOPICS = ("--topics-include", "--topic-white-list")
_WITHOUT_EFFECT = ("--fetch-size", "--max-wait-ms", "--report-interval-ms", "--time")
_SYNTAX = Syntax(
    "kafka-replica-verification",
    "verify-replicas",
    with_value=(*ADDRESS, *_TOPICS, *_WITHOUT_EFFECT, "--command-config"),
    flags=("--help",),
)
_EVERY_TOPIC = ".*"


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["verify-replicas", "--help"])
    chosen = [text for text in given.all(*_TOPICS) if text != _EVERY_TOPIC]
    if has_pattern(chosen):
        names = ["--matching", pattern_of(chosen)]
    else:
        names = topic_names(_SYNTAX.script, chosen)
    translated = translation(["verify-replicas", *names], given)
    notes = [
        f"{name} has no effect: the replicas are compared once, from the beginning"
        for name in _WITHOUT_EFFECT
        if given.all(name)
    ]
    return translated._replace(notes=(*translated.notes, *notes))
