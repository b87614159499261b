"""The format of producer snapshots, which spare a start from reading the whole log.

00000000000000000042.snapshot   the producers as of offset 42 (exclusive)
    i16  version   1
    u32  CRC-32C   of everything after it
    i32  count of producers, then for each, 46 bytes:
         i64 producer id, i16 producer epoch, i32 last sequence, i64 last offset,
         i32 offset delta (records in the last batch - 1), i64 timestamp,
         i32 coordinator epoch, i64 start of the open transaction or -1
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError

from headrace.core.producer_state import SnapshotEntry
from headrace.model.errors import Corrupt
from headrace.records.checksum import crc32c

_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_FORMAT = 1


def encode(entries: Iterable[SnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(_FORMAT, crc32c(body)) + body


def decode(data: bytes) -> list[SnapshotEntry]:
    try:
        snapshot_version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except StructError:
        raise Corrupt(f"a producer snapshot of {len(data)} bytes is too short") from None
    if snapshot_version != _FORMAT:
        raise Corrupt(f"a producer snapshot of version {snapshot_version}; only 1 is supported")
    if crc32c(data[_HEAD.size :]) != crc:
        raise Corrupt("the CRC of the producer snapshot does not match its bytes")
    start = _HEAD.size + _COUNT.size
    if len(data) != start + count * _ENTRY.size:
        raise Corrupt(f"a producer snapshot of {len(data)} bytes cannot hold {count} producers")
    return [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(data[start:])]
