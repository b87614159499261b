"""The newest offset of every key, in memory that is bounded beforehand.

An open-addressing table of 24 bytes a slot, as many slots as the dedupe buffer
has room for: 16 bytes of MD5 and 8 of offset + 1, so that 0 means empty. A dict
of the same would take about 150 bytes a key and could not be bounded.

Two keys with one MD5 would be taken for the same; Kafka accepts that too.
"""

import mmap
from hashlib import md5

DIGEST_SIZE = 16
SLOT_SIZE = DIGEST_SIZE + 8


class KeyOffsets:
    """At most ``capacity`` keys; the memory is only touched as far as keys come."""

    __slots__ = ("_digests", "_memory", "_offsets", "_slots", "capacity", "count")

    def __init__(self, size_max: int, load_factor: float, keys_expected_max: int) -> None:
        load_factor = min(max(load_factor, 0.1), 0.95)
        slots = size_max // SLOT_SIZE
        slots = min(slots, int(keys_expected_max / load_factor) + 16)
        # With a prime number of slots every step visits them all.
        self._slots = _prime_at_most(max(slots, 17))
        self.capacity = max(int(self._slots * load_factor), 1)
        self.count = 0
        offsets_size = self._slots * 8
        self._memory = mmap.mmap(-1, offsets_size + self._slots * DIGEST_SIZE)
        self._offsets = memoryview(self._memory)[:offsets_size].cast("q")
        self._digests = memoryview(self._memory)[offsets_size:]

    def put(self, key: bytes, offset: int) -> bool:
        """Remember ``offset`` for ``key``; False if the key is new and there is no room."""
        digest = md5(key, usedforsecurity=False).digest()
        slot = self._find(digest)
        offsets = self._offsets
        if not offsets[slot]:
            if self.count >= self.capacity:
                return False
            self.count += 1
            self._digests[slot * DIGEST_SIZE : (slot + 1) * DIGEST_SIZE] = digest
        offsets[slot] = offset + 1
        return True

    def newest(self, key: bytes) -> int:
        """The last offset put for ``key``, -1 if there is none."""
        return self._offsets[self._find(md5(key, usedforsecurity=False).digest())] - 1

    def _find(self, digest: bytes) -> int:
        """The slot of ``digest``, or the empty one where it belongs. One is always empty."""
        slots, offsets, digests = self._slots, self._offsets, self._digests
        number = int.from_bytes(digest, "little")
        slot = number % slots
        if not offsets[slot]:
            return slot
        step = 0
        while offsets[slot]:
            at = slot * DIGEST_SIZE
            if digests[at : at + DIGEST_SIZE] == digest:
                return slot
            step = step or 1 + (number >> 64) % (slots - 1)
            slot = (slot + step) % slots
        return slot


def _prime_at_most(number: int) -> int:
    number -= 1 - number % 2
    while any(number % divisor == 0 for divisor in range(3, int(number**0.5) + 1, 2)):
        number -= 2
    return number
