"""Varints of many rows at once, written and read back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow.varints import byte_pairs, read_varints, varint_fields, varint_widths

NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.integers(-100, 100)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_varints_of_all_widths_are_read_as_they_were_written(rows):
    first, second = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))

    written = varint_fields(
        [(first, varint_widths(first)), (None, 2), (second, varint_widths(second))]
    )

    data = np.frombuffer(b"".join(written.to_pylist()) + bytes(16), dtype=np.uint8)
    sizes = [len(entry) for entry in written.to_pylist()]
    start = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    pairs = byte_pairs(data)
    found_first, after = read_varints(data, pairs, start)
    found_second, end = read_varints(data, pairs, after + 2)
    assert found_first.tolist() == first.tolist()
    assert found_second.tolist() == second.tolist()
    assert (end - start).tolist() == sizes


def test_a_varint_of_more_than_ten_bytes_ends_after_the_data():
    data = np.full(30, 0xFF, dtype=np.uint8)

    _, after = read_varints(data, byte_pairs(data), np.array([3]))

    assert after.tolist() == [30]
