"""Checks of one command line of a Kafka script."""

import shlex

import pytest

from headrace.cli.kafka_scripts.syntax import Translation
from headrace.cli.kafka_scripts.translation import translate
from headrace.cli.output import WRONG_USAGE, CommandFailed


def check_translated(line: str, expected: str) -> None:
    translated = translate(shlex.split(line))
    assert translated.arguments == shlex.split(expected)
    # A translation is never translated a second time.
    assert translate(translated.arguments) == Translation(translated.arguments)


def check_refused(line: str, message: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        translate(shlex.split(line))
    assert refused.value.status == WRONG_USAGE
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
