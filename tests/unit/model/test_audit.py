"""The messages that producers publish for the audit."""

import pytest

from headrace.model.audit import (
    MINUTE_MS,
    AuditMessage,
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
    for value in (b"{}", b"[]", b'{"read": [{}]}', b"no JSON"):
        with pytest.raises(ValueError):
            parse_message(value)
