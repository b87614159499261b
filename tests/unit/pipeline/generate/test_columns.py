"""Columns and their JSON text."""

import json

import numpy as np
import pyarrow as pa

from headrace.pipeline.generate.columns import (
    NULL,
    Events,
    Numbers,
    Words,
    addresses,
    event_ids,
    numbered,
    quoted,
    times,
    values,
)

NUMBERS = np.arange(3)


def test_values_are_json_objects():
    columns = {
        "page": Words(np.array([1, NULL, 0], np.int32), quoted(["/", "/about"])),
        "is_new": Words(np.array([0, 1, 0], np.int32), pa.array(["false", "true"])),
        "member": Numbers(np.array([7, NULL, 8])),
        "vote": Numbers(np.array([1, -1, 1]), signed=True),
        "cpu": Numbers(np.array([0.5, 12.0, 99.9])),
    }
    found = values(event_ids(5, NUMBERS), times(np.array([0, 1, 86_400_000])), columns)
    rows = [json.loads(value.as_py()) for value in found]
    assert [row["at"] for row in rows] == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.001Z",
        "1970-01-02T00:00:00.000Z",
    ]
    assert [row["page"] for row in rows] == ["/about", None, "/"]
    assert [row["is_new"] for row in rows] == [False, True, False]
    assert [row["member"] for row in rows] == [7, None, 8]
    assert [row["vote"] for row in rows] == [1, -1, 1]
    assert [row["cpu"] for row in rows] == [0.5, 12.0, 99.9]


def test_different_numbers_have_different_ids():
    ids = event_ids(2**63 + 5, np.arange(100_000))
    assert len(set(ids.to_pylist())) == 100_000
    assert {len(text) for text in ids.to_pylist()} == {16}
    assert ids == event_ids(2**63 + 5, np.arange(100_000))
    assert not set(ids.to_pylist()) & set(event_ids(6, np.arange(1000)).to_pylist())


def test_keys_are_plain_text():
    assert Words(np.array([1, 0], np.int32), quoted(["a", "b"])).plain().to_pylist() == [b"b", b"a"]
    assert Numbers(np.array([12, 3])).plain().to_pylist() == [b"12", b"3"]


def test_names_and_addresses():
    assert numbered("v", 2).to_pylist() == ['"v0"', '"v1"']
    assert addresses(65_535, 2).to_pylist() == ['"10.0.255.255"', '"10.1.0.0"']


def test_later_events_follow():
    def at(sent, word):
        columns = {"n": Numbers(sent), "w": Words(np.array([word] * 3, np.int32), quoted("ab"))}
        return Events(sent, columns)

    both = at(NUMBERS, 0).followed_by(at(NUMBERS + 3, 1)).taken(slice(1, 5))
    assert both.sent_ms.tolist() == [1, 2, 3, 4]
    assert both.columns["n"].json().to_pylist() == ["1", "2", "3", "4"]
    assert both.columns["w"].json().to_pylist() == ['"a"', '"a"', '"b"', '"b"']
