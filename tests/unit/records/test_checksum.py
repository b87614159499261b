"""CRC-32C: the check value of its specification, over any contiguous buffer."""

import pytest

from headrace.records.checksum import crc32c


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_checksum_has_the_check_value_of_the_specification(kind):
    assert crc32c(kind(b"123456789")) == 0xE3069283


def test_a_checksum_can_be_continued():
    assert crc32c(b"456789", crc32c(b"123")) == crc32c(b"123456789")
