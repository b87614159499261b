"""The sparse indexes of one segment, as values; ``segment_indexes`` owns their files.

    00000000000000000042.index      entries of 8 bytes, big endian, back to back
        u32  offset    of the last record of a batch, relative to the base offset
        u32  position  of that batch in the .log beside it
    00000000000000000042.timeindex  entries of 12 bytes
        i64  timestamp the largest up to and including some batch
        u32  offset    of the last record of the batch that holds it, relative

Both get an entry for the first batch after every ``index.interval.bytes``, the time index only if
the largest timestamp has grown since. A closed segment has one more, with its largest timestamp.

The .log alone is authoritative. After a crash an index may be short, long, full of zeros (Kafka
preallocates that of the active segment) or missing; it is then rebuilt.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from headrace.core.retention import RELATIVE_OFFSET_MAX
from headrace.model.ids import Millis, Offset

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12
NO_TIMESTAMP = Millis(-1)

_time_entry = Struct(">qI")
_SWAP = sys.byteorder == "little"
assert array("I").itemsize == 4, "index entries are four bytes wide"


class BadIndex(ValueError):
    """The bytes of an index file contradict each other or the log."""


class OffsetIndex:
    """Positions by offset. All offsets are relative to the segment's base.

    Lookups use ``keys``. For entries of this process it holds the batch's base offset, so that the
    next fetch of a reader, which asks for exactly that offset, is a direct hit; for entries read
    from a file only the last offset is known. Either way the batch at ``positions[i]`` holds
    ``keys[i]``. Entries from a file may be wrong (there is no checksum): the caller must check the
    batch at the position.
    """

    __slots__ = ("keys", "last_offsets", "loaded_count", "positions", "saved_count")

    def __init__(self) -> None:
        self.last_offsets = array("I")
        self.keys = array("I")
        self.positions = array("I")
        self.saved_count = 0  # entries that are already in the file
        self.loaded_count = 0  # entries read from the file

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, base_offset: int, last_offset: int, position: int) -> None:
        self.keys.append(base_offset)
        self.last_offsets.append(last_offset)
        self.positions.append(position)

    def floor(self, target: int) -> tuple[int, bool]:
        """Where to start scanning for ``target``, and whether the batch there surely holds it."""
        slot = bisect_right(self.keys, target) - 1
        if slot < 0:
            return 0, False
        return self.positions[slot], self.keys[slot] == target and slot >= self.loaded_count

    def cut(self, limit: int) -> tuple[int, int | None]:
        """The last known batch boundary at or before the position ``limit``.

        For an entry read from a file also the last offset of the batch that must begin there.
        """
        slot = bisect_right(self.positions, limit) - 1
        if slot < 0:
            return 0, None
        return self.positions[slot], (self.last_offsets[slot] if slot < self.loaded_count else None)

    def truncate(self, position: int) -> None:
        """Keep the entries of batches that start before ``position``."""
        count = bisect_left(self.positions, position)
        del self.positions[count:], self.last_offsets[count:], self.keys[count:]
        self.saved_count = min(self.saved_count, count)
        self.loaded_count = min(self.loaded_count, count)

    def encode(self, start: int = 0) -> bytes:
        pairs = array("I", bytes(OFFSET_ENTRY_SIZE * (len(self.positions) - start)))
        pairs[0::2] = self.last_offsets[start:]
        pairs[1::2] = self.positions[start:]
        if _SWAP:
            pairs.byteswap()
        return pairs.tobytes()

    @classmethod
    def decode(cls, data: bytes, log_size: int) -> "OffsetIndex":
        """Raises BadIndex unless the entries rise and stay within ``log_size`` bytes."""
        data = _without_preallocation(data, OFFSET_ENTRY_SIZE)
        if len(data) % OFFSET_ENTRY_SIZE:
            raise BadIndex(f"{len(data)} bytes are not a multiple of {OFFSET_ENTRY_SIZE}")
        pairs = array("I", data)
        if _SWAP:
            pairs.byteswap()
        index = cls()
        index.last_offsets = pairs[0::2]
        index.positions = pairs[1::2]
        index.keys = array("I", index.last_offsets)
        index.saved_count = index.loaded_count = len(index.positions)
        if index.positions:
            if not (_rises(index.last_offsets) and _rises(index.positions)):
                raise BadIndex("the entries are not in ascending order")
            if index.positions[-1] >= log_size:
                raise BadIndex(f"the last entry points to byte {index.positions[-1]} of {log_size}")
        return index


class TimeIndex:
    """Offsets by timestamp, relative to the segment's base."""

    __slots__ = ("last_offsets", "saved_count", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.last_offsets = array("I")
        self.saved_count = 0

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def last_timestamp(self) -> Millis:
        return Millis(self.timestamps[-1]) if self.timestamps else NO_TIMESTAMP

    def maybe_append(self, timestamp: int, last_offset: int) -> bool:
        """Append an entry if the timestamp has grown; returns whether it did."""
        if timestamp <= (self.timestamps[-1] if self.timestamps else NO_TIMESTAMP):
            return False
        self.timestamps.append(timestamp)
        self.last_offsets.append(last_offset)
        return True

    def floor(self, timestamp: int) -> int:
        """A relative offset at or before which every record is older than ``timestamp``."""
        # The entry's own batch may hold the first record of that very timestamp, so only entries
        # strictly below it can be skipped.
        slot = bisect_left(self.timestamps, timestamp) - 1
        return self.last_offsets[slot] if slot >= 0 else 0

    def truncate(self, end_offset: int) -> None:
        """Keep the entries of batches that end before ``end_offset``."""
        count = bisect_left(self.last_offsets, end_offset)
        del self.timestamps[count:], self.last_offsets[count:]
        self.saved_count = min(self.saved_count, count)

    def encode(self, start: int = 0) -> bytes:
        pack = _time_entry.pack
        return b"".join(map(pack, self.timestamps[start:], self.last_offsets[start:]))

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        data = _without_preallocation(data, TIME_ENTRY_SIZE)
        if len(data) % TIME_ENTRY_SIZE:
            raise BadIndex(f"{len(data)} bytes are not a multiple of {TIME_ENTRY_SIZE}")
        index = cls()
        for timestamp, last_offset in _time_entry.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.last_offsets.append(last_offset)
        index.saved_count = len(index.timestamps)
        if not _rises(index.timestamps):
            raise BadIndex("the timestamps are not in ascending order")
        if not _does_not_fall(index.last_offsets):
            raise BadIndex("the offsets are not in ascending order")
        return index


def last_time(time_index: bytes) -> tuple[Millis, Offset]:
    """The largest timestamp of a segment and its relative offset, from its last entries.

    -1 if there is no entry.
    """
    data = _without_preallocation(time_index, TIME_ENTRY_SIZE)
    if not data:
        return NO_TIMESTAMP, Offset(0)
    if len(data) % TIME_ENTRY_SIZE:
        raise BadIndex(f"{len(data)} bytes are not a multiple of {TIME_ENTRY_SIZE}")
    timestamp, relative = _time_entry.unpack_from(data, len(data) - TIME_ENTRY_SIZE)
    if timestamp < 0 or relative > RELATIVE_OFFSET_MAX:
        raise BadIndex(f"not an entry: timestamp {timestamp}, relative offset {relative}")
    return Millis(timestamp), Offset(relative)


def _without_preallocation(data: bytes, entry_size: int) -> bytes:
    # No real entry is all zeros: the first comes after index.interval.bytes of log, and timestamp
    # 0 at the base offset carries no information.
    if not data.endswith(bytes(entry_size)):
        return data
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry_size) * entry_size]


def _rises(values: "array[int]") -> bool:
    listed = values.tolist()
    return all(map(int.__lt__, listed, listed[1:]))


def _does_not_fall(values: "array[int]") -> bool:
    listed = values.tolist()
    return all(map(int.__le__, listed, listed[1:]))
