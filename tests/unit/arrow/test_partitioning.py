"""Partitions by key, as Kafka's Java producer chooses them."""

import numpy as np
import pyarrow as pa

from headrace.arrow.partitioning import murmur2, partitions_by_key

# Hashes that Kafka's own Utils.murmur2 gives.
KNOWN_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_keys_hash_as_kafkas_java_producer_hashes_them():
    keys = pa.array(list(KNOWN_HASHES), pa.binary())

    assert murmur2(keys).astype(np.int32).tolist() == list(KNOWN_HASHES.values())


def test_a_slice_of_keys_hashes_like_the_whole():
    keys = pa.array([b"", b"a", b"abcd", b"abcde", b"x" * 100] * 3, pa.binary())

    assert murmur2(keys[4:9]).tolist() == murmur2(keys).tolist()[4:9]
    assert set(partitions_by_key(keys, 7)) <= set(range(7))
