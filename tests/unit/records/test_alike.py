"""Cached spans equal the spans that a scan finds."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.records.alike import AlikeSections
from headrace.records.batch import BadBatch, read_header
from headrace.records.plain import plain_batch
from headrace.records.record import open_records, spans


def section(records):
    batch = plain_batch(records, None, 1)
    return open_records(batch, read_header(batch))


def one_of(keys, value):
    return section([(key, value) for key in keys])


def test_sections_that_differ_only_in_values_share_spans_from_the_second_on():
    alike = AlikeSections()
    found = [alike.spans(one_of([b"a", b"b", b"c"], value), 3) for value in (b"1", b"2", b"3")]
    assert found[0].found == found[1].found == found[2].found
    assert [one.is_kept for one in found] == [False, True, True]
    assert found[1] is found[2]
    other = alike.spans(one_of([b"a", b"b", b"d"], b"4"), 3)
    assert [span.key for span in other.found] == [b"a", b"b", b"d"]


def test_the_cache_is_bounded():
    alike = AlikeSections(records_kept=5)
    for number in range(4):
        keys = [b"%d" % number, b"x", b"y"]
        kept = [alike.spans(one_of(keys, b"v"), 3).is_kept for _ in range(2)]
        assert kept[-1] == (number == 0)
    assert not any(alike.spans(one_of([b"a"], b"v"), 1).is_kept for _ in range(3)), "only one"


def test_sections_of_one_size_with_values_at_other_positions_are_distinguished():
    alike = AlikeSections()
    for first, second, key in ((9, 1, b"b"), (9, 1, b"b"), (1, 9, b"b"), (1, 9, b"c")):
        data = section([(b"a", b"v" * first), (key, b"v" * second)])
        assert [span.key for span in alike.spans(data, 2).found] == [b"a", key]


values = st.none() | st.binary(max_size=3) | st.sampled_from([b"", b"\0\0", b"\2\2", b"x" * 70])
keys = st.sampled_from([b"a", b"b", b"cc", b"\0", b"\0\0\0\0"])
changes = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=2)


def looked(find, data, count):
    try:
        return find(data, count)
    except BadBatch:
        return None


@given(st.lists(st.tuples(st.lists(st.tuples(keys, values), min_size=1, max_size=4), changes)))
def test_the_spans_are_those_of_a_scan_in_any_order_of_sections(given_sections):
    alike = AlikeSections(records_kept=20)
    for _ in range(3):
        for records, given_changes in given_sections:
            data = bytearray(section(records))
            for place, byte in given_changes:
                data[place % len(data)] = byte
            found = looked(alike.spans, bytes(data), len(records))
            expected = looked(spans, bytes(data), len(records))
            assert (found and found.found) == expected
