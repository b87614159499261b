"""The files of a partition directory as printable rows, with the problems found in them.

Reads only, with the broker's own readers, so it shows what a broker would see.
"""

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.cli import internal_records
from headrace.model.errors import Corrupt
from headrace.model.ids import Offset, Position, id_to_text
from headrace.records.batch import BadBatch, BatchHeader, crc_holds
from headrace.records.record import ABORT, COMMIT, Record, iter_records, marker_type
from headrace.storage import aborted_transactions, checkpoint, snapshots
from headrace.storage.files import OpenFile
from headrace.storage.index import BadIndex, OffsetIndex, TimeIndex
from headrace.storage.scan import Scan
from headrace.world.files import O_RDONLY, SystemFiles

Row = dict[str, object]

_FILES = SystemFiles()

# Suffixes of files that are being deleted or replaced; their kind is before the suffix.
_TEMPORARY_SUFFIXES = (".deleted", ".swap", ".cleaned")
_CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_MARKERS = {ABORT: "ABORT", COMMIT: "COMMIT"}


class Verified(NamedTuple):
    """The result of comparing an index with its log."""

    against: str  # the log's name
    entry_count: int
    wrong_count: int


class Dump(NamedTuple):
    kind: str
    rows: list[Row]
    problems: list[str]
    verified: Verified | None = None  # None if not requested or not an index


class BatchPlace(NamedTuple):
    """The fields of a batch that indexes refer to."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class NotALogFile(ValueError):
    """Not a file of a log directory."""


def kind_of(path: Path) -> str | None:
    """``log``, ``index``, … or the whole name of a checkpoint; None for anything else."""
    name = path.name
    for suffix in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(suffix)
    suffix = name.rpartition(".")[2]
    if suffix in ("log", "index", "timeindex", "txnindex", "snapshot"):
        return suffix if name.partition(".")[0].isdigit() else None
    if name in (
        "leader-epoch-checkpoint",
        "partition.metadata",
        "meta.properties",
        ".kafka_cleanshutdown",
    ):
        return name
    return name if name.endswith("-offset-checkpoint") else None


def dumped(path: Path, *, deep: bool, verify_index: bool, row_count_max: int | None) -> Dump:
    """The contents of ``path``. Raises NotALogFile or OSError."""
    kind = kind_of(path)
    path.stat()  # the readers below treat a missing file as empty
    match kind:
        case None:
            raise NotALogFile(f"{path} is not a log file, index, snapshot or checkpoint")
        case "log":
            return _log(path, deep, row_count_max)
        case "index":
            return _limited(_index(path, verify_index), row_count_max)
        case "timeindex":
            return _limited(_time_index(path, verify_index), row_count_max)
    try:
        rows = list(_rows(path, kind))
    except (Corrupt, ValueError) as failure:
        return Dump(kind, [], [str(failure)])
    return _limited(Dump(kind, rows, []), row_count_max)


def _limited(dump: Dump, row_count_max: int | None) -> Dump:
    return dump._replace(rows=dump.rows[:row_count_max])


def _rows(path: Path, kind: str) -> Iterator[Row]:
    match kind:
        case "snapshot":
            for producer in snapshots.decode(path.read_bytes()):
                yield producer._asdict()
        case "txnindex":
            for aborted in aborted_transactions.decode(path.read_bytes()):
                yield aborted._asdict()
        case "leader-epoch-checkpoint":
            for entry in checkpoint.read_leader_epochs(_FILES, path).entries:
                yield entry._asdict()
        case "partition.metadata":
            topic_id = checkpoint.read_topic_id(_FILES, path)
            yield {"topic_id": None if topic_id is None else id_to_text(topic_id)}
        case "meta.properties":
            for name, value in (checkpoint.read_properties(_FILES, path) or {}).items():
                yield {"key": name, "value": value}
        case ".kafka_cleanshutdown":
            yield {"broker_epoch": checkpoint.read_clean_shutdown(_FILES, path)}
        case _:
            for partition, offset in checkpoint.read_offsets(_FILES, path).items():
                yield {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "offset": offset,
                }


def _log(path: Path, deep: bool, row_count_max: int | None) -> Dump:
    rows: list[Row] = []
    problems: list[str] = []
    topic = path.absolute().parent.name.rpartition("-")[0]
    scan = _scan(path)
    for position, header in scan:
        if row_count_max is not None and len(rows) >= row_count_max:
            return Dump("log", rows, problems)
        batch = scan.batch()
        is_whole = crc_holds(batch, header)
        row = _batch_row(position, header, is_whole)
        if not is_whole:
            problems.append(f"the batch at byte {position} has a wrong CRC")
        if deep:
            try:
                row["records"] = [
                    _record_row(record, header, topic) for record in iter_records(batch)
                ]
            except BadBatch as bad:
                row["records"] = []
                problems.append(f"the batch at byte {position} cannot be decoded: {bad.reason}")
        rows.append(row)
    if scan.problem is not None and not _is_unwritten(path, scan.valid_end):
        left = path.stat().st_size - scan.valid_end
        problems.append(
            f"invalid data at byte {scan.valid_end}, {left} bytes before the end: {scan.problem}"
        )
    return Dump("log", rows, problems)


def _batch_row(position: int, header: BatchHeader, is_whole: bool) -> Row:
    flags = [
        name
        for name, is_set in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("append-time", header.log_append_time),
        )
        if is_set
    ]
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records_count": header.record_count,
        "position": position,
        "size": header.size,
        "magic": header.magic,
        "codec": _CODECS.get(header.codec, str(header.codec)),
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
        # None if the producer is not idempotent.
        "producer_id": None if header.producer_id < 0 else header.producer_id,
        "producer_epoch": None if header.producer_id < 0 else header.producer_epoch,
        "base_sequence": None if header.base_sequence < 0 else header.base_sequence,
        "flags": ",".join(flags) or None,
        "crc": "ok" if is_whole else "wrong",
    }


def _record_row(record: Record, header: BatchHeader, topic: str) -> Row:
    row: Row = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
    }
    if (decoded := internal_records.decode(topic, record.key, record.value)) is not None:
        row["key"], row["value"] = decoded
    if header.is_control:
        kind = marker_type(record.key)
        row["marker"] = _MARKERS.get(kind, f"control {kind}")
    return row


def _index(path: Path, verify: bool) -> Dump:
    base_offset, log_path = _segment_of_index(path)
    log_size = log_path.stat().st_size if log_path.exists() else 1 << 32
    try:
        index = OffsetIndex.decode(path.read_bytes(), log_size)
    except BadIndex as failure:
        return Dump("index", [], [str(failure)])
    entries = list(zip(index.last_offsets, index.positions, strict=True))
    rows: list[Row] = [
        {"offset": base_offset + relative, "position": position} for relative, position in entries
    ]
    if not verify:
        return Dump("index", rows, [])
    problems: list[str] = []
    try:
        by_position = {place.position: place for place in _places(log_path)}
    except OSError as failure:
        return Dump("index", rows, [f"cannot be verified: {failure}"])
    for relative, position in entries:
        place = by_position.get(position)
        if place is None:
            problems.append(f"offset {base_offset + relative}: no batch starts at byte {position}")
        elif place.last_offset != base_offset + relative:
            problems.append(
                f"byte {position}: the index has offset {base_offset + relative}, "
                f"but the batch ends with offset {place.last_offset}"
            )
    return Dump("index", rows, problems, Verified(log_path.name, len(rows), len(problems)))


def _time_index(path: Path, verify: bool) -> Dump:
    base_offset, log_path = _segment_of_index(path)
    try:
        index = TimeIndex.decode(path.read_bytes())
    except BadIndex as failure:
        return Dump("timeindex", [], [str(failure)])
    entries = list(zip(index.timestamps, index.last_offsets, strict=True))
    rows: list[Row] = [
        {"timestamp": timestamp, "offset": base_offset + relative}
        for timestamp, relative in entries
    ]
    if not verify:
        return Dump("timeindex", rows, [])
    try:
        places = list(_places(log_path))
    except OSError as failure:
        return Dump("timeindex", rows, [f"cannot be verified: {failure}"])
    last_offsets = [place.last_offset for place in places]
    problems: list[str] = []
    for timestamp, relative in entries:
        slot = bisect_left(last_offsets, base_offset + relative)
        found = places[slot].max_timestamp if slot < len(places) else None
        if found != timestamp:
            problems.append(
                f"offset {base_offset + relative}: the index has timestamp {timestamp}, "
                f"but the log {'has no such offset' if found is None else f'has {found}'}"
            )
    return Dump("timeindex", rows, problems, Verified(log_path.name, len(rows), len(problems)))


def _segment_of_index(index_path: Path) -> tuple[int, Path]:
    """The base offset in the file's name, and the .log file of the same segment."""
    stem = index_path.name.partition(".")[0]
    return int(stem), index_path.with_name(f"{stem}.log")


def _places(log_path: Path) -> Iterator[BatchPlace]:
    for position, header in _scan(log_path):
        yield BatchPlace(position, header.base_offset, header.last_offset, header.max_timestamp)


def _scan(path: Path) -> Scan:
    file = OpenFile(_FILES, str(path), O_RDONLY)
    size = path.stat().st_size
    # The caller checks the CRC: a batch with a wrong one is shown and does not end the scan.
    return Scan(file, Position(0), Position(size), Offset(0), check_crc=False)


def _is_unwritten(path: Path, start: int) -> bool:
    """Whether only zeros follow: preallocated space that is not used yet."""
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(1 << 20):
            if piece.strip(b"\0"):
                return False
    return True
