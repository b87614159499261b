"""The small argument parser: options, flags, positional arguments, and mistakes."""

import pytest

from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.cli.plain_arguments import parsed

WITH_VALUE = {"--data": "data", "-d": "data", "--listen": "listen"}
FLAGS = {"--quiet": "quiet", "-q": "quiet"}


def parse(*arguments):
    return parsed("serve", arguments, with_value=WITH_VALUE, flags=FLAGS)


def test_options_flags_and_positional_arguments_are_told_apart():
    found = parse("a", "--data", "x", "-q", "--data=y=z", "-d", "-", "-")
    assert found.values == {"data": ["x", "y=z", "-"]}
    assert found.flags == {"quiet"}
    assert found.positional == ["a", "-"]


def test_the_last_value_of_an_option_wins():
    assert parse("--data", "x", "-d", "y").last("data") == "y"
    assert parse().last("data") is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--data"], "--data needs a value"),
        (["--dta", "x"], "unknown option --dta"),
        (["--quiet=yes"], "unknown option --quiet=yes"),
    ],
)
def test_wrong_usage_is_named_with_the_way_to_the_help(arguments, reason):
    with pytest.raises(CommandFailed, match=f"serve: {reason}; 'headrace serve --help'") as failed:
        parse(*arguments)
    assert failed.value.status == WRONG_USAGE
