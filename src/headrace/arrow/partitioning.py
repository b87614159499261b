"""Chooses the partition of a row by its key, as Kafka's Java producer does.

The hash is Kafka's murmur2, so rows with the same key go to the same partition whichever
producer writes them.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
_24, _13, _15 = np.uint32(24), np.uint32(13), np.uint32(15)


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """The hash of each key of a binary array without nulls."""
    count = len(keys)
    if not count:
        return np.empty(0, dtype=np.uint32)
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset :][: count + 1]
    start = offsets[:-1].astype(np.int64)
    size = np.diff(offsets).astype(np.int64)
    buffer = keys.buffers()[2]
    data = np.frombuffer((buffer.to_pybytes() if buffer is not None else b"") + bytes(8), np.uint8)
    words = np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    hashes = np.uint32(_SEED) ^ size.astype(np.uint32)
    for word in range(int(size.max()) // 4):
        rows = np.flatnonzero(size >= 4 * (word + 1))
        mixed = words[start[rows] + 4 * word] * _M
        mixed ^= mixed >> _24
        hashes[rows] = hashes[rows] * _M ^ mixed * _M
    rest = size & 3
    tail = start + (size & ~3)
    for at in (2, 1, 0):
        rows = np.flatnonzero(rest > at)
        hashes[rows] ^= data[tail[rows] + at].astype(np.uint32) << np.uint32(8 * at)
    rows = np.flatnonzero(rest > 0)
    hashes[rows] *= _M
    hashes ^= hashes >> _13
    hashes *= _M
    hashes ^= hashes >> _15
    return hashes


def partitions_by_key(keys: pa.Array, partition_count: int) -> npt.NDArray[np.int64]:
    """The hash without its sign bit, modulo the number of partitions."""
    positive = murmur2(keys) & np.uint32(0x7FFF_FFFF)
    return positive.astype(np.int64) % partition_count
