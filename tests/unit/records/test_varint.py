"""Zigzag varints: Kafka's bytes, in both directions, up to ten of them."""

import pytest

from headrace.records.batch import BadBatch
from headrace.records.varint import read_varint, varint

EXAMPLES = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-8192, "ff7f"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("number", "text"), EXAMPLES)
def test_numbers_have_the_bytes_of_kafka(number, text):
    encoded = bytes.fromhex(text)
    assert varint(number) == encoded
    assert read_varint(b"??" + encoded + b"??", 2) == (number, 2 + len(encoded))


def test_a_number_that_the_data_cuts_off_is_no_number():
    for _, text in EXAMPLES:
        encoded = bytes.fromhex(text)
        with pytest.raises(IndexError):
            read_varint(encoded[:-1], 0)


def test_more_than_ten_bytes_are_a_bad_batch():
    with pytest.raises(BadBatch, match="more than ten bytes"):
        read_varint(b"\xff" * 10 + b"\x01", 0)
