"""Ids as Kafka prints them."""

import pytest

from headrace.model.ids import TopicPartition, id_from_text, id_to_text


def test_an_id_is_url_safe_base64_without_padding():
    raw = bytes.fromhex("fbefbefbefbefbefbefbefbefbefbefb")
    assert id_to_text(raw) == "--------------------" + "-w"
    assert id_from_text(id_to_text(raw)) == raw


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 44])
def test_an_id_has_sixteen_bytes(text):
    with pytest.raises(ValueError, match="is not a 16-byte id"):
        id_from_text(text)


def test_a_partition_is_printed_as_its_directory_is_named():
    assert str(TopicPartition("orders", 3)) == "orders-3"
