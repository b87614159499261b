"""Parsing and printing of values."""

import pytest

from headrace.cli import values
from headrace.cli.output import WRONG_USAGE, CommandFailed

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("90s", 90_000), ("2h", 7_200_000), ("1d12h", 129_600_000), ("1.5s", 1500), ("250ms", 250)],
)
def test_a_duration_is_a_sum_of_numbers_with_units(text, milliseconds):
    assert values.duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "2", "h", "2x", "2h ", "-2h", "2h-1m"])
def test_other_texts_are_not_durations(text):
    assert values.duration_ms(text) is None


def test_an_instant_is_milliseconds_a_duration_before_now_or_iso():
    assert values.instant_ms("1700000000000", NOW) == 1_700_000_000_000
    assert values.instant_ms("2h", NOW) == NOW - 7_200_000
    assert values.instant_ms("1970-01-01T00:00:01Z", NOW) == 1000
    assert values.instant_ms("1970-01-01T01:00:01+01:00", NOW) == 1000


def test_an_invalid_instant_is_wrong_usage():
    with pytest.raises(CommandFailed, match="yesterday") as failed:
        values.instant_ms("yesterday", NOW)
    assert failed.value.status == WRONG_USAGE


def test_a_timestamp_outside_the_calendar_is_printed_as_a_number():
    assert values.iso(0) == "1970-01-01T00:00:00.000+00:00"
    assert values.iso(2**62) == str(2**62)
    assert values.iso(-1) == "-1"


def test_separators_may_contain_escapes():
    assert values.unescaped(r"\t") == "\t"
    assert values.unescaped(r"a\x01b\n\\") == "a\x01b\n\\"
    assert values.unescaped(r"\q") == r"\q"


def test_pairs_split_at_the_first_equals_sign():
    assert values.pairs(["a=1", "b=x=y", "c="], "-X") == {"a": "1", "b": "x=y", "c": ""}
    for text in ("a", "=1"):
        with pytest.raises(CommandFailed, match="KEY=VALUE"):
            values.pairs([text], "-X")


def test_a_header_without_a_separator_has_the_value_null():
    assert values.headers("a=1,b=,c") == [("a", b"1"), ("b", b""), ("c", None)]
    assert values.headers("a:1=2", ":") == [("a", b"1=2")]
    assert values.headers("") == []
    with pytest.raises(ValueError, match="no name"):
        values.headers("=1")


def test_sizes_are_multiples_of_1024():
    assert [values.size(text) for text in ("100", "1k", "2M", "1KiB")] == [100, 1024, 2 << 20, 1024]
    with pytest.raises(CommandFailed, match="many"):
        values.size("many")


def test_partitions_are_numbers_and_ranges():
    assert values.numbers("0,3,5-7", "-p") == [0, 3, 5, 6, 7]
    with pytest.raises(CommandFailed, match="expected numbers"):
        values.numbers("1-", "-p")


def test_a_count_has_a_singular_or_plural_noun():
    assert values.counted(1, "record") == "1 record"
    assert values.counted(2000, "batch", "batches") == "2,000 batches"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
        (2 << 50, "2.0 PiB"),
    ],
)
def test_a_size_is_readable(count, text):
    assert values.readable_size(count) == text
