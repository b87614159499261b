"""Log files as rows: files that Apache Kafka wrote, and damaged ones."""

import shutil
from pathlib import Path

import pytest

from headrace.cli import log_files
from headrace.records.record import Record, build_batch

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1-logs"


def dumped(path: Path, *, deep: bool = False, verify_index: bool = False, limit=None):
    return log_files.dumped(path, deep=deep, verify_index=verify_index, row_count_max=limit)


def every_golden_file() -> list[Path]:
    return [path for path in sorted(GOLDEN.rglob("*")) if log_files.kind_of(path) is not None]


@pytest.mark.parametrize(
    "path", every_golden_file(), ids=lambda path: str(path.relative_to(GOLDEN))
)
def test_files_that_kafka_wrote_have_no_problems(path):
    assert dumped(path, deep=True, verify_index=True).problems == []


@pytest.fixture
def segment(tmp_path) -> Path:
    """Ten batches of three records each, at base offset 100."""
    path = tmp_path / "00000000000000000100.log"
    batches = [
        build_batch(
            [
                Record(100 + base + n, 1000 + base + n, b"k", f"v{n}".encode(), (("h", b"1"),))
                for n in range(3)
            ],
            base_offset=100 + base,
        )
        for base in range(0, 30, 3)
    ]
    path.write_bytes(b"".join(batches))
    return path


def test_a_batch_is_a_row_and_its_records_are_below_it(segment):
    shallow = dumped(segment)
    assert [row["base_offset"] for row in shallow.rows] == list(range(100, 130, 3))
    assert shallow.rows[0]["crc"] == "ok" and "records" not in shallow.rows[0]
    deep = dumped(segment, deep=True).rows[1]["records"]
    assert isinstance(deep, list)
    assert deep[2] == {
        "offset": 105,
        "timestamp": 1005,
        "key": b"k",
        "value": b"v2",
        "headers": (("h", b"1"),),
    }


def test_the_number_of_rows_is_limited(segment):
    assert len(dumped(segment, limit=4).rows) == 4


def test_a_flipped_bit_is_reported_and_the_rest_is_still_shown(segment):
    data = bytearray(segment.read_bytes())
    size = len(data) // 10
    data[size + 70] ^= 1
    segment.write_bytes(data)
    dump = dumped(segment)
    assert [row["crc"] for row in dump.rows].count("wrong") == 1
    assert len(dump.rows) == 10
    assert len(dump.problems) == 1 and f"byte {size}" in dump.problems[0]


def test_a_torn_tail_is_reported_with_its_position(segment):
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-5])
    dump = dumped(segment)
    assert len(dump.rows) == 9
    assert f"at byte {len(whole) * 9 // 10}" in dump.problems[0]


def test_preallocated_zeros_after_the_last_batch_are_no_problem(segment):
    segment.write_bytes(segment.read_bytes() + bytes(4096))
    assert dumped(segment).problems == []


def test_an_index_that_contradicts_its_log_is_found(segment):
    size = segment.stat().st_size // 10
    index = segment.with_suffix(".index")
    entry = (5).to_bytes(4, "big") + size.to_bytes(4, "big")
    index.write_bytes(entry + (8).to_bytes(4, "big") + (2 * size + 1).to_bytes(4, "big"))
    assert dumped(index).problems == []
    dump = dumped(index, verify_index=True)
    assert dump.rows[0] == {"offset": 105, "position": size}
    assert dump.problems == [f"offset 108: no batch starts at byte {2 * size + 1}"]


def test_a_time_index_that_contradicts_its_log_is_found(segment):
    times = segment.with_suffix(".timeindex")
    good = (1005).to_bytes(8, "big") + (5).to_bytes(4, "big")
    bad = (1009).to_bytes(8, "big") + (8).to_bytes(4, "big")
    times.write_bytes(good + bad)
    dump = dumped(times, verify_index=True)
    assert dump.rows == [{"timestamp": 1005, "offset": 105}, {"timestamp": 1009, "offset": 108}]
    assert len(dump.problems) == 1 and "1008" in dump.problems[0]


@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot", "txnindex"])
def test_garbage_is_reported_as_a_problem(segment, suffix):
    path = segment.with_suffix(f".{suffix}")
    path.write_bytes(b"\x01garbage")
    assert dumped(path, verify_index=True).problems


def test_an_index_without_its_log_cannot_be_verified(tmp_path):
    source = GOLDEN / "clean" / "txn-0" / "00000000000000000000.index"
    path = tmp_path / source.name
    shutil.copy(source, path)
    assert "cannot be verified" in dumped(path, verify_index=True).problems[0]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.touch()
    with pytest.raises(log_files.NotALogFile):
        dumped(path)
    with pytest.raises(FileNotFoundError):
        dumped(tmp_path / "leader-epoch-checkpoint")


def test_a_file_that_is_being_deleted_keeps_its_kind():
    assert log_files.kind_of(Path("00000000000000000042.log.deleted")) == "log"
    assert log_files.kind_of(Path("headrace.log")) is None
