"""The aborted-transaction index of one segment, for readers of committed records.

    00000000000000000042.txnindex   entries of 34 bytes, big endian, by marker offset
        i16  version            0
        i64  producer id
        i64  first offset       of the transaction
        i64  last offset        of its abort marker
        i64  last stable offset once the marker is replicated

A segment without aborted transactions has no such file.
"""

from collections.abc import Iterable
from struct import Struct

from headrace.core.producer_state import AbortedTransaction

ENTRY = Struct(">hqqqq")
ENTRY_SIZE = ENTRY.size
assert ENTRY_SIZE == 34


def encode(aborted: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(ENTRY.pack(0, *transaction) for transaction in aborted)


def decode(data: bytes) -> list[AbortedTransaction]:
    """Raises ValueError for bytes that are not a transaction index; the caller rebuilds it."""
    if len(data) % ENTRY_SIZE:
        raise ValueError(f"{len(data)} bytes are not a multiple of {ENTRY_SIZE}")
    aborted = []
    for entry_version, producer_id, first, last, last_stable in ENTRY.iter_unpack(data):
        if entry_version != 0 or not 0 <= first <= last:
            raise ValueError(f"not an aborted transaction: {entry_version}, {first}, {last}")
        aborted.append(AbortedTransaction(producer_id, first, last, last_stable))
    return aborted
