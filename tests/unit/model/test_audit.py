"""The messages that producers, queries and loads publish for the audit."""

import pytest

from headrace.model.audit import (
    MINUTE_MS,
    AuditMessage,
    LoadMessage,
    MinuteCounts,
    ReadMessage,
    ReadRange,
    parse_message,
)


def test_records_are_counted_in_the_minute_of_their_timestamp():
    counts = MinuteCounts("generate", "r1")
    counts.add("views", 5 * MINUTE_MS)
    counts.add("views", 6 * MINUTE_MS - 1, 2)
    counts.add("views", 6 * MINUTE_MS)
    counts.add("posts", 0)

    message = counts.take()

    assert message.counts == {"views": {5 * MINUTE_MS: 3, 6 * MINUTE_MS: 1}, "posts": {0: 1}}
    assert counts.take() is None


def test_each_message_has_a_key_of_its_own_and_counts_only_what_is_new():
    counts = MinuteCounts("ship", "r1")
    counts.add("logs", 0)
    first = counts.take()
    counts.add("logs", 0)
    second = counts.take()

    assert first.counts == second.counts == {"logs": {0: 1}}
    assert first.key == b"ship/r1/1" and second.key == b"ship/r1/2"


def test_a_message_is_read_as_it_was_written():
    message = AuditMessage("ship", "r1", 3, {"logs": {60_000: 7}})

    assert AuditMessage.parse(message.value) == message


@pytest.mark.parametrize("value", [b"no json", b"[]", b"{}", b'{"counts": 1}', b'{"counts": {}}'])
def test_another_value_is_refused(value):
    with pytest.raises(ValueError):
        AuditMessage.parse(value)


def test_what_a_task_read_has_the_same_key_when_it_runs_again():
    ranges = (ReadRange("views", "T", 1, 5, 9, {0: 3, MINUTE_MS: 1}),)
    message = ReadMessage("shop/10s/id", 7, ranges)

    assert message.key == b"read/shop/10s/id/7/T-1:5-9"
    assert parse_message(message.value) == message
    sent = AuditMessage("generate", "r1", 1, {"views": {0: 1}})
    assert parse_message(sent.value) == sent


def test_what_a_load_commits_has_the_same_key_when_it_runs_again():
    ranges = (ReadRange("views", "T", 1, 5, 9, {0: 3, MINUTE_MS: 1}),)
    loaded, lost = LoadMessage("s3://b/views", ranges), LoadMessage("s3://b/views", ranges, True)

    assert loaded.key == b"loaded/s3://b/views/T-1:5-9"
    assert lost.key == b"lost/s3://b/views/T-1:5-9"
    assert parse_message(loaded.value) == loaded and parse_message(lost.value) == lost


RANGE = b'{"topic":"t","topic_id":"T","partition":0,"first_offset":%d,"offset_end":%d,"counts":{}}'


@pytest.mark.parametrize(
    "value",
    [
        b"{}", b"[]", b'{"read": [{}]}', b"no JSON", b"\xff", b"1", b'"read"', b"null",
        b'{"table": "t", "loaded": 1}',
        b'{"query": "q", "batch": 1, "read": [' + RANGE % (5, 3) + b"]}",
        b'{"table": "t", "lost": [' + RANGE % (-1, 3) + b"]}",
        b'{"producer": "p", "run": "r", "number": 1, "counts": {"t": {"0": -1}}}',
        b'{"producer": "p", "run": "r", "number": 1, "counts": {"t": {"0": Infinity}}}',
        b'{"producer": "p", "run": "r", "number": 1, "counts": {"t": {"0": 1' + b"0" * 30 + b"}}}",
        b'{"producer": "p", "run": "r", "number": 1, "counts": {"\\ud800": {}}}',
        b'{"counts": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_other_values_are_refused(value):
    with pytest.raises(ValueError):
        parse_message(value)


def test_an_empty_range_is_read():
    value = b'{"query": "q", "batch": 1, "read": [' + RANGE % (5, 5) + b"]}"
    assert parse_message(value).ranges[0].offset_end == 5
