"""The newest offset of every key, in a fixed amount of memory.

An open-addressing table with as many slots as fit into the dedupe buffer. A slot has 24 bytes: a
16-byte hash of the key, and offset + 1 in 8 bytes, so that 0 means empty. A dict would take about
150 bytes per key, without a bound.

Two keys with the same hash count as one. Kafka accepts that with MD5; BLAKE2 is as short, faster
here, and such a pair cannot be made on purpose.
"""

import mmap
from collections.abc import Iterable
from hashlib import blake2b

DIGEST_SIZE = 16
SLOT_SIZE = DIGEST_SIZE + 8


class KeyOffsets:
    """Holds at most ``capacity`` keys; unused memory is never touched."""

    __slots__ = ("_digests", "_memory", "_offsets", "_slots", "capacity", "count")

    def __init__(self, size_max: int, load_factor: float, keys_expected_max: int) -> None:
        load_factor = min(max(load_factor, 0.1), 0.95)
        slots = size_max // SLOT_SIZE
        slots = min(slots, int(keys_expected_max / load_factor) + 16)
        # With a prime number of slots every step size visits all of them.
        self._slots = _prime_at_most(max(slots, 17))
        self.capacity = max(int(self._slots * load_factor), 1)
        self.count = 0
        self._memory = mmap.mmap(-1, self._slots * 8)
        self._offsets = memoryview(self._memory).cast("q")
        self._digests = mmap.mmap(-1, self._slots * DIGEST_SIZE)

    def put_all(self, records: Iterable[tuple[int, bytes]]) -> int | None:
        """Store each offset for its key; returns the first offset without room, or None.

        The highest offset of a key wins.
        """
        # The inner loop of a cleaning, so it makes no Python calls.
        slots, offsets, digests = self._slots, self._offsets, self._digests
        for offset, key in records:
            digest = blake2b(key, digest_size=16).digest()
            number = int.from_bytes(digest, "little")
            slot = number % slots
            step = 0
            while offsets[slot]:
                if digests[slot * 16 : slot * 16 + 16] == digest:
                    break
                step = step or 1 + (number >> 64) % (slots - 1)
                slot = (slot + step) % slots
            else:
                if self.count >= self.capacity:
                    return offset
                self.count += 1
                digests[slot * 16 : slot * 16 + 16] = digest
            if offsets[slot] <= offset:
                offsets[slot] = offset + 1
        return None

    def newest(self, keys: Iterable[bytes | None]) -> list[int]:
        """The highest offset stored for each key, -1 if there is none."""
        slots, offsets, digests = self._slots, self._offsets, self._digests
        found = []
        for key in keys:
            if key is None:
                found.append(-1)
                continue
            digest = blake2b(key, digest_size=16).digest()
            number = int.from_bytes(digest, "little")
            slot = number % slots
            step = 0
            # Terminates, because the load factor leaves empty slots.
            while (stored := offsets[slot]) and digests[slot * 16 : slot * 16 + 16] != digest:
                step = step or 1 + (number >> 64) % (slots - 1)
                slot = (slot + step) % slots
            found.append(stored - 1)
        return found


def _prime_at_most(number: int) -> int:
    number -= 1 - number % 2
    while any(number % divisor == 0 for divisor in range(3, int(number**0.5) + 1, 2)):
        number -= 2
    return number
