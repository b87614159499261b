"""Load a shard: replay its partition's log in pieces, so that requests run in between."""

import asyncio
from collections.abc import Callable

from headrace.core.outcome import Shard
from headrace.model.errors import Corrupt, PeerBroken, Rejected
from headrace.model.ids import Offset
from headrace.records.batch import CONTROL, TRANSACTIONAL, BadBatch, headers
from headrace.records.plain import keys_and_values
from headrace.records.record import COMMIT, iter_records, marker_type, open_records
from headrace.storage.log import Log
from headrace.storage.page_cache import read

# Replaying a piece of this size blocks the loop for a few milliseconds.
_PIECE_SIZE = 256 << 10

UNREADABLE = (BadBatch, Corrupt, IndexError, PeerBroken, Rejected, OSError, ValueError)


async def replay_log(log: Log, shard: Shard, is_wanted: Callable[[], bool]) -> int:
    """Replay the whole log into ``shard`` while ``is_wanted``; returns the number of records.

    Raises one of ``UNREADABLE`` if the log cannot be read.
    """
    next_offset, record_count = log.log_start, 0
    while next_offset < log.log_end and is_wanted():
        piece = log.read(next_offset, _PIECE_SIZE, log.log_end)
        if piece is None:
            break  # compaction left nothing after this offset
        data = await asyncio.to_thread(read, piece)
        if len(data) < piece.size:  # without a whole batch this loop would never end
            raise Corrupt(f"{piece.file.path} ends at byte {piece.position + len(data)}")
        end, count = _replay_piece(shard, data)
        record_count += count
        await asyncio.sleep(0)
        # Retention may have deleted the next records.
        next_offset = max(next_offset, end, log.log_start)
    return record_count


def _replay_piece(shard: Shard, data: bytes) -> tuple[Offset, int]:
    """Replay whole batches; returns the offset after the last, and the number of records."""
    end, count = 0, 0
    view = memoryview(data)
    for position, header in headers(data):
        batch = view[position : position + header.size]
        is_transactional = header.attributes & TRANSACTIONAL
        producer_id = header.producer_id if is_transactional else -1
        if header.attributes & CONTROL:
            for record in iter_records(batch):
                committed = marker_type(record.key) == COMMIT
                shard.replay_marker(producer_id, header.producer_epoch, committed, record.offset)
        else:
            section = open_records(batch, header)
            for delta, key, value in keys_and_values(section, header.record_count):
                if key is not None:
                    offset = header.base_offset + delta
                    shard.replay(key, value, offset, producer_id, header.producer_epoch)
        end = header.next_offset
        count += header.record_count
    return Offset(end), count
