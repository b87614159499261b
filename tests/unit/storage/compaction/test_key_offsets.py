"""The bounded table of newest offsets, against a dict."""

import random

from headrace.storage.compaction.key_offsets import SLOT_SIZE, KeyOffsets


def test_it_answers_like_a_dict() -> None:
    dice = random.Random(1)
    table = KeyOffsets(1 << 20, 0.9, 5_000)
    twin: dict[bytes, int] = {}
    for offset in range(5_000):
        key = b"key %d" % dice.randrange(2_000)
        assert table.put_all([(offset, key)]) is None
        twin[key] = offset
    keys = [b"key %d" % number for number in range(2_100)]
    assert table.newest(keys) == [twin.get(key, -1) for key in keys]
    assert table.count == len(twin)


def test_the_highest_offset_wins_in_any_order() -> None:
    table = KeyOffsets(1 << 10, 0.9, 10)
    table.put_all([(7, b"a"), (3, b"a"), (0, b"b"), (0, b"b"), (1, b"b")])
    assert table.newest([b"a", b"b"]) == [7, 1]


def test_a_full_table_accepts_known_keys_but_no_new_ones() -> None:
    table = KeyOffsets(100 * SLOT_SIZE, 0.5, 1_000)
    records = [(offset, b"%d" % offset) for offset in range(200)]
    full_at = table.put_all(records)
    assert full_at == table.capacity == table.count < 60
    assert table.put_all([(500, b"0")]) is None
    assert table.put_all([(501, b"new")]) == 501
    assert table.newest([b"0", b"new", None]) == [500, -1, -1]


def test_its_size_is_bounded_by_the_buffer_and_by_the_number_of_keys() -> None:
    assert KeyOffsets(1 << 20, 0.9, 1 << 30).capacity * SLOT_SIZE < 1 << 20
    assert 10 <= KeyOffsets(1 << 30, 0.9, 10).capacity < 50
    assert KeyOffsets(0, 0.9, 0).capacity >= 1
