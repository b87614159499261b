"""The small text files and the two binary ones beside the batches."""

import pytest

from headrace.core.producer_state import AbortedTransaction, SnapshotEntry
from headrace.model.errors import Corrupt
from headrace.storage import aborted_transactions, checkpoint, snapshots
from headrace.world.files import SystemFiles

FILES = SystemFiles()
ENTRIES = [
    SnapshotEntry(5, 0, 68, 93, 3, 1794782238418, 0, -1),
    SnapshotEntry(7, 3, 5, 97, 2, 1700000000002, 9, 95),
]


@pytest.mark.parametrize(
    "content", ["0\nx\n", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na b c\n", "0\n", "\xff"]
)
def test_the_error_for_an_unreadable_checkpoint_names_the_file(tmp_path, content):
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(Corrupt, match="recovery-point-offset-checkpoint"):
        checkpoint.read_offsets(FILES, path)


def test_a_missing_or_empty_checkpoint_has_no_entries(tmp_path):
    assert checkpoint.read_offsets(FILES, tmp_path / "absent") == {}
    (tmp_path / "empty").touch()
    assert checkpoint.read_offsets(FILES, tmp_path / "empty") == {}


def test_the_topic_id_is_written_as_by_kafka(tmp_path):
    path = tmp_path / "partition.metadata"
    assert checkpoint.read_topic_id(FILES, str(path)) is None
    checkpoint.write_topic_id(FILES, str(path), bytes(range(16)), sync=False)
    assert path.read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoint.read_topic_id(FILES, str(path)) == bytes(range(16))


@pytest.mark.parametrize(
    "content",
    [
        "version: 0\n",
        "version: 0\ntopic_id: abc",
        "version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw",
    ],
)
def test_an_unreadable_topic_id_is_an_error(tmp_path, content):
    path = tmp_path / "partition.metadata"
    path.write_text(content)
    with pytest.raises(Corrupt):
        checkpoint.read_topic_id(FILES, str(path))


@pytest.mark.parametrize("content", [b"", bytes(40)])
def test_a_topic_id_that_a_power_failure_took_is_absent(tmp_path, content):
    path = tmp_path / "partition.metadata"
    path.write_bytes(content)
    assert checkpoint.read_topic_id(FILES, str(path)) is None


def test_a_clean_shutdown_marker_may_be_empty(tmp_path):
    path = tmp_path / checkpoint.CLEAN_SHUTDOWN
    assert checkpoint.read_clean_shutdown(FILES, path) is None
    path.touch()
    assert checkpoint.read_clean_shutdown(FILES, path) == -1


def test_a_snapshot_decodes_to_what_was_encoded():
    data = snapshots.encode(ENTRIES)
    assert len(data) == 10 + 2 * 46
    assert snapshots.decode(data) == ENTRIES
    assert snapshots.decode(snapshots.encode([])) == []


def test_every_flipped_bit_and_every_truncation_of_a_snapshot_is_detected():
    data = snapshots.encode(ENTRIES)
    for position in range(len(data)):
        with pytest.raises(Corrupt):
            snapshots.decode(data[:position])
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(Corrupt):
            snapshots.decode(bytes(damaged))


def test_aborted_transactions_take_34_bytes_each():
    aborted = [AbortedTransaction(7, 9, 88, 86), AbortedTransaction(5, 90, 94, 95)]
    data = aborted_transactions.encode(aborted)
    assert len(data) == 68
    assert aborted_transactions.decode(data) == aborted


@pytest.mark.parametrize(
    "data", [b"x", b"\x00\x01" + bytes(32), bytes(9) + b"\x01" + bytes(24) * 1]
)
def test_bytes_that_are_not_a_transaction_index_are_refused(data):
    if len(data) == 34 and data[:2] == b"\0\0":
        data = data[:10] + b"\xff" * 8 + data[18:]
    with pytest.raises(ValueError):
        aborted_transactions.decode(data)


@pytest.mark.parametrize(
    "read", [checkpoint.read_properties, checkpoint.read_topic_id, checkpoint.read_offsets]
)
def test_bytes_that_are_not_text_are_reported_as_damage(tmp_path, read):
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Corrupt, match=str(path)):
        read(FILES, path)


def test_a_clean_shutdown_marker_counts_whatever_its_content(tmp_path):
    path = tmp_path / "mark"
    path.write_bytes(b"\xff\xfe\x00")
    assert checkpoint.read_clean_shutdown(FILES, path) == -1
