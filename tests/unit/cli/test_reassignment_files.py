"""The JSON files of kafka-reassign-partitions, and every mistake in them."""

import json

import pytest

from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.cli.reassignment_files import document, read_reassignment, read_topics

GOOD = {"topic": "t", "partition": 0, "replicas": [1, 2]}


def write(tmp_path, content):
    file = tmp_path / "file.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def moves(*entries, **fields):
    return {"version": 1, "partitions": list(entries), **fields}


def test_assignments_are_read(tmp_path):
    kafka = {**GOOD, "log_dirs": ["any", "any"]}
    found = read_reassignment(write(tmp_path, moves(kafka, {**GOOD, "partition": 1})))
    assert found == ({("t", 0): [1, 2], ("t", 1): [1, 2]}, {})


def test_what_is_written_can_be_read(tmp_path):
    targets, current = {("t", 0): [2, 1]}, {("t", 0): [1, 2], ("u", 0): [1]}
    assert read_reassignment(write(tmp_path, document(targets, current))) == (
        targets,
        {("t", 0): [1, 2]},
    )
    assert read_reassignment(write(tmp_path, document(targets))) == (targets, {})


def test_topics_are_read(tmp_path):
    file = write(tmp_path, {"version": 1, "topics": [{"topic": "a"}, {"topic": "b"}]})
    assert read_topics(file) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not a JSON document"),
        ([], 'has no list "partitions"; expected a document such as'),
        ({"topics": []}, 'has no list "partitions"'),
        ({"partitions": {}}, 'has no list "partitions"'),
        (moves(), '"partitions" is empty'),
        (moves(GOOD, version=2), '"version" is 2; only 1 is known'),
        (moves(GOOD, 7), r"partitions\[1\] is 7, not an object"),
        (moves({"partition": 0, "replicas": [1]}), r'partitions\[0\] has no "topic"'),
        (moves({**GOOD, "topic": 1}), r'partitions\[0\]: "topic" is 1, not a string'),
        (moves({**GOOD, "topic": ""}), r'partitions\[0\]: "topic" is empty'),
        (moves({**GOOD, "partition": "0"}), '"partition" is "0", not an integer'),
        (moves({**GOOD, "partition": True}), '"partition" is true, not an integer'),
        (moves({**GOOD, "partition": -1}), '"partition" is -1; expected 0 or more'),
        (moves({"topic": "t", "partition": 0}), 'has no "replicas"'),
        (moves({**GOOD, "replicas": 1}), '"replicas" is 1, not a list'),
        (moves({**GOOD, "replicas": []}), '"replicas" is empty'),
        (moves({**GOOD, "replicas": ["1"]}), '"replicas" has "1", not a broker ID'),
        (moves({**GOOD, "replicas": [-1]}), '"replicas" has -1, not a broker ID'),
        (moves({**GOOD, "replicas": [1, 1]}), '"replicas" has broker 1 twice'),
        (moves(GOOD, GOOD), r"partitions\[1\]: t-0 is in the file twice"),
        (moves({**GOOD, "log_dirs": ["any"]}), '"log_dirs" has 1 entries for 2 replicas'),
        (moves({**GOOD, "log_dirs": ["any", "/d"]}), 'supports only "any"'),
        (moves({**GOOD, "current_replicas": "x"}), '"current_replicas" is "x"'),
    ],
)
def test_a_mistake_is_named_with_its_entry(tmp_path, content, said):
    with pytest.raises(CommandFailed, match=said) as refused:
        read_reassignment(write(tmp_path, content))
    assert refused.value.status == WRONG_USAGE and "file.json" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"topics": [{}]}, r'topics\[0\] has no "topic"'),
        (
            {"topics": [{"topic": "a"}, {"topic": "a"}]},
            r"topics\[1\]: topic a is in the file twice",
        ),
        ({"partitions": []}, 'has no list "topics"'),
    ],
)
def test_a_mistake_in_a_file_of_topics(tmp_path, content, said):
    with pytest.raises(CommandFailed, match=said):
        read_topics(write(tmp_path, content))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(CommandFailed, match="No such file"):
        read_reassignment(tmp_path / "missing")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandFailed, match="UTF-8"):
        read_reassignment(binary)
