"""How members leave a consumer group, on request or fenced."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.core.groups.consumer.changes import Change, cancel_timers
from headrace.core.groups.consumer.state import ConsumerState
from headrace.core.groups.conversion import can_downgrade, downgrade
from headrace.core.outcome import Outcome
from headrace.model.ids import Millis

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard


def fence(
    shard: "GroupShard", state: ConsumerState, going: Collection[str], now: Millis
) -> Outcome:
    """Remove these members at once. What they owned is free for the others."""
    if can_downgrade(shard, state, going, is_replaced=False):
        staying = [member for name, member in state.members.items() if name not in going]
        record = downgrade(shard, state, staying, must_rebalance=True, now=now)
        return Outcome((*state.tombstones(), record))
    change = Change(shard, state, [], now)
    for member_id in going:
        change.take_out(state.members[member_id])
        cancel_timers(shard, state.group_id, member_id)
    change.resolve_patterns()
    change.raise_epoch(must=True)
    return Outcome(tuple(change.records))
