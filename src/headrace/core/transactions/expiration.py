"""Time in a transaction shard: open transactions time out, idle transactional ids expire."""

from typing import TYPE_CHECKING

from headrace.core.outcome import NewRecord, Outcome
from headrace.core.transactions import end_txn
from headrace.core.transactions.effects import DrawProducerId, NeedsProducerId
from headrace.core.transactions.transaction import AT_REST, Transaction, key_of
from headrace.model.ids import Millis

if TYPE_CHECKING:
    from headrace.core.transactions.shard import TransactionShard

TIMEOUT = "timeout"  # the timer of an open transaction
EXPIRATION = ("", "expiration")  # no transactional id is empty
_TOMBSTONES_MAX = 1000  # in one go, so that other requests are served in between


def time_out(shard: "TransactionShard", known: Transaction, now: Millis) -> Outcome:
    """Abort a transaction that was open for too long."""
    try:
        return end_txn.fence(shard, known, now)
    except NeedsProducerId:
        return Outcome(effects=(DrawProducerId(),))


def schedule(shard: "TransactionShard", now: Millis) -> None:
    shard.timers.set(EXPIRATION, now + shard.settings().expiration_interval_ms)


def expire(shard: "TransactionShard", now: Millis) -> Outcome:
    """Forget transactional ids that were unused for too long, a limited number at a time."""
    idle_since = now - shard.settings().expiration_ms
    expired = [
        transaction.transactional_id
        for transaction in shard.transactions.values()
        if transaction.state in AT_REST and transaction.updated_at <= idle_since
    ]
    if len(expired) > _TOMBSTONES_MAX:
        shard.timers.set(EXPIRATION, now)
    else:
        schedule(shard, now)
    tombstones = tuple(NewRecord(key_of(each), None) for each in expired[:_TOMBSTONES_MAX])
    return Outcome(tombstones, splittable=True)
