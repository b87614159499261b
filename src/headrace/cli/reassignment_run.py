"""Carry out a plan: check it against the cluster, begin it, wait for it with a progress bar.

The moves are the controller's: they go on when this command is interrupted, and the same command,
run again, waits for the same moves.
"""

import time
from collections.abc import Collection, Iterable, Mapping

from headrace.cli import output, values
from headrace.cli.reassignment_plan import Assignment, Move, Partition, moves, name_of
from headrace.cli.reassignment_requests import (
    ReplicaSizes,
    Snapshot,
    alter_reassignments,
    list_reassignments,
    names,
    replica_sizes,
    snapshot,
)
from headrace.cli.reassignment_throttles import (
    Changes,
    remove_throttles,
    restore,
    throttle,
    throttled,
)
from headrace.client.cluster import Cluster
from headrace.client.errors import ClientError, Disconnected

POLL_S = 0.5
_FIRST_POLL_S = 0.05
_SIZES_INTERVAL_S = 2.0
_BAR_WIDTH = 30
_STALLED_AFTER_S = 30.0
METADATA_AGE_S_MAX = 10.0
CONTROLLER_AWAY_S_MAX = 60.0


def check_targets(cluster_now: Snapshot, targets: Assignment, planned_for: Assignment) -> None:
    """Refuse what the controller would refuse, by the name of the partition, and outdated plans."""
    assigned = cluster_now.assigned
    live = cluster_now.view.brokers
    for partition, target in targets.items():
        name = name_of(partition)
        if partition not in assigned:
            topic, number = partition
            existing = [p for t, p in assigned if t == topic]
            raise output.CommandFailed(
                f"{name}: topic {topic} has no partition {number}"
                if existing
                else f"{name}: topic {topic} does not exist"
            )
        current = assigned[partition]
        unknown = [broker for broker in target if broker not in live and broker not in current]
        if unknown:
            raise output.CommandFailed(
                f"{name}: broker {unknown[0]} is not registered; it cannot get a replica. Live "
                f"brokers: {', '.join(map(str, live))}"
            )
        moving = cluster_now.reassigning.get(partition)
        is_on_its_way = current == target or (moving is not None and moving.target == target)
        if partition in planned_for and planned_for[partition] != current and not is_on_its_way:
            raise output.CommandFailed(
                f"{name}: the plan is out of date. It was made for the replicas "
                f"{_listed(planned_for[partition])}, but the partition has {_listed(current)} now. "
                "Make it again with 'headrace reassign generate' or 'plan --out'"
            )


def check_in_progress(
    cluster_now: Snapshot, targets: Assignment, *, additional: bool | None = None
) -> None:
    """Refuse to replace or to join other moves, unless the user allows it with ``additional``.

    None stands for a command without that option.
    """
    if additional:
        return
    for partition, moving in sorted(cluster_now.reassigning.items()):
        if partition in targets and moving.target != targets[partition]:
            way_out = "" if additional is None else ", or replace it with --additional"
            raise output.CommandFailed(
                f"{name_of(partition)} is being reassigned to {_listed(moving.target)}. Wait for "
                "it ('headrace reassign list') or cancel it ('headrace reassign cancel')" + way_out
            )
    others = [partition for partition in cluster_now.reassigning if partition not in targets]
    if others:
        way_out = (
            " or cancel it ('headrace reassign cancel')"
            if additional is None
            else ", or use --additional to begin this one beside it"
        )
        raise output.CommandFailed(
            f"another reassignment is in progress: {names(others)}. Wait for it ('headrace "
            "reassign list')" + way_out
        )


def planned(cluster: Cluster, cluster_now: Snapshot, targets: Assignment) -> list[Move]:
    """The moves that are left to do, with the bytes of each."""
    sizes = replica_sizes(cluster, cluster_now.view.brokers.values())
    return moves(cluster_now.assigned, targets, sizes.of_leader(cluster_now.view))


def check_factors(cluster_now: Snapshot, targets: Assignment) -> None:
    """Refuse targets with more or fewer replicas than the partition has.

    The controller checks it again, but Apache Kafka 3.9's does not know the request.
    """
    assigned = cluster_now.assigned
    for partition, target in targets.items():
        if len(target) != len(assigned[partition]):
            raise output.CommandFailed(
                f"{name_of(partition)}: the target has {values.counted(len(target), 'replica')}, "
                f"the partition {len(assigned[partition])}. Correct the file, or leave out "
                "--disallow-replication-factor-change"
            )


def begin(
    cluster: Cluster,
    now: Snapshot,
    todo: list[Move],
    rate: int | None,
    *,
    may_change_factor: bool = True,
) -> None:
    """Throttle the moves, and begin all that are not in progress; if one is refused, begin none."""
    earlier_throttles = {} if rate is None else throttle(cluster, todo, rate, now.view.brokers)
    fresh = [move for move in todo if not _is_begun(now, move)]
    if not fresh:
        return
    try:
        refused = alter_reassignments(
            cluster,
            {(move.topic, move.partition): move.target for move in fresh},
            may_change_factor=may_change_factor,
        )
    except output.CommandFailed:
        _undo_throttles(cluster, todo, rate, earlier_throttles)
        raise
    if not refused:
        return
    begun = {(move.topic, move.partition) for move in fresh} - refused.keys()
    # A move that this command has replaced goes on.
    replaced = {one: now.reassigning[one].target for one in begun & now.reassigning.keys()}
    undone = dict.fromkeys(sorted(begun), None) | replaced
    not_undone = alter_reassignments(cluster, undone) if undone else {}
    _undo_throttles(cluster, todo, rate, earlier_throttles)
    for partition, why in refused.items():
        output.error(f"{name_of(partition)}: {why}")
    for partition, why in not_undone.items():
        what = "resumed" if partition in replaced else "cancelled"
        output.error(f"{name_of(partition)}: its move could not be {what}: {why}")
    raise output.CommandFailed(
        f"{values.counted(len(refused), 'partition')} refused; "
        + _what_remains(replaced.keys() - not_undone.keys(), bool(not_undone))
    )


def _is_begun(now: Snapshot, move: Move) -> bool:
    moving = now.reassigning.get((move.topic, move.partition))
    return moving is not None and moving.target == move.target


def _undo_throttles(
    cluster: Cluster, todo: list[Move], rate: int | None, earlier: Mapping[str, Changes]
) -> None:
    if rate is None:
        return
    restore(cluster, earlier)
    if not end_throttles(cluster, earlier.keys(), _brokers_of(todo)):
        output.note(
            f"other moves are in progress, so the brokers keep the rate of {rate:,} bytes per "
            "second until these are over"
        )


def _what_remains(resumed: Collection[Partition], has_failed: bool) -> str:
    if has_failed:
        return "'headrace reassign list' shows what is in progress now"
    if resumed:
        return f"the earlier moves go on: {names(resumed)}. Nothing else is reassigned"
    return "nothing is reassigned"


def run_moves(
    cluster: Cluster,
    now: Snapshot,
    todo: list[Move],
    rate: int | None,
    *,
    topics: Collection[str],
    waits: bool,
    how_to_cancel: str,
    may_change_factor: bool = True,
) -> bool:
    """Begin the moves that are not begun yet, and wait for all; whether all are completed.

    At the end, ``topics`` have no throttles: an earlier run may have completed the moves of some,
    and was killed before it could remove them.
    """
    throttled_topics = {move.topic for move in todo} | set(topics)
    if not todo:
        if waits and throttled(cluster, throttled_topics):
            end_throttles(cluster, throttled_topics, ())
        return True
    begin(cluster, now, todo, rate, may_change_factor=may_change_factor)
    if not waits:
        return False
    completed = wait(cluster, todo, how_to_cancel=how_to_cancel)
    try:
        end_throttles(cluster, throttled_topics, _brokers_of(todo))
    except ClientError as failure:
        raise output.CommandFailed(
            f"{failure}. The moves are over, but throttles may be left: run the same command "
            "again to remove them"
        ) from None
    if not completed:
        raise output.CommandFailed(
            "not all partitions have their new replicas: the reassignment was cancelled or "
            "replaced, or a topic was deleted"
        )
    return True


def wait(cluster: Cluster, todo: list[Move], *, how_to_cancel: str) -> bool:
    """Wait until the moves are over; whether all partitions have their new replicas."""
    progress = _Progress(cluster, todo, how_to_cancel)
    goes_on = (
        "The reassignment goes on in the cluster. Run the same command again to wait for it, "
        f"or cancel it: {how_to_cancel}"
    )
    try:
        _wait_until_over(cluster, todo, progress)
        # A broker may hear of the new replicas a little later than the controller ends the move.
        give_up_at = time.monotonic() + METADATA_AGE_S_MAX
        while not _has_targets(snapshot(cluster), todo):
            if time.monotonic() > give_up_at:
                return False
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        output.progress_over()
        output.note(goes_on)
        raise
    except ClientError as failure:
        output.progress_over()
        raise output.CommandFailed(f"{failure}. {goes_on}") from None
    return True


def _wait_until_over(cluster: Cluster, todo: list[Move], progress: "_Progress") -> None:
    pause_s = _FIRST_POLL_S
    answered_at = time.monotonic()
    while True:
        try:
            left = _unfinished(cluster, todo)
        except Disconnected:
            # A controller that dies has a successor after the timeout of its session.
            if time.monotonic() - answered_at > CONTROLLER_AWAY_S_MAX:
                raise
            progress.say("the controller does not answer; waiting for it or for the next one")
            time.sleep(POLL_S)
            continue
        answered_at = time.monotonic()
        if not left:
            break
        progress.show(left)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S)
    output.progress_over()


def _brokers_of(todo: list[Move]) -> set[int]:
    return {broker for move in todo for broker in (*move.current, *move.target)}


def _has_targets(now: Snapshot, todo: list[Move]) -> bool:
    assigned = now.assigned
    return all(assigned.get((move.topic, move.partition)) == move.target for move in todo)


def end_throttles(
    cluster: Cluster, topics: Collection[str] | None, involved: Iterable[int]
) -> bool:
    """Remove the throttles of topics, or of all, unless moves are in progress: they may need them.

    ``involved`` are the brokers of the moves. Some may be down.
    """
    now = snapshot(cluster)
    if now.reassigning:
        return False
    existing = {one.topic for one in now.view.partitions}
    ended = existing if topics is None else existing.intersection(topics)
    absent = sorted({*now.view.missing_brokers, *involved} - now.view.brokers.keys())
    remove_throttles(cluster, ended, now.view.brokers, absent)
    return True


def _unfinished(cluster: Cluster, todo: list[Move]) -> list[Move]:
    reassigning = list_reassignments(cluster)
    return [move for move in todo if (move.topic, move.partition) in reassigning]


class _Progress:
    """The progress bar, and what the operator must know: a broker that is down, a full disk."""

    def __init__(self, cluster: Cluster, todo: list[Move], how_to_cancel: str) -> None:
        self._cluster = cluster
        self._todo = todo
        self._how_to_cancel = how_to_cancel
        self._total = sum(move.bytes_to_copy for move in todo)
        self._copied = 0
        self._looked_at = float("-inf")
        self._advanced_at = self._started_at = time.monotonic()
        self._last: tuple[int, int] = (-1, -1)
        self._said: set[str] = set()

    def show(self, left: list[Move]) -> None:
        now = time.monotonic()
        if now - self._looked_at > _SIZES_INTERVAL_S:
            self._looked_at = now
            self._look(left)
        if (len(left), self._copied) != self._last:
            self._last, self._advanced_at = (len(left), self._copied), now
        share = self._copied / self._total if self._total else 0.0
        done = len(self._todo) - len(left)
        bar = "█" * round(min(1.0, share) * _BAR_WIDTH)
        elapsed = max(0.1, now - self._started_at)
        output.progress(
            f"[{bar.ljust(_BAR_WIDTH)}] {share:4.0%}  {done:,} of "
            f"{values.counted(len(self._todo), 'partition')}  "
            f"{values.readable_size(self._copied)} of {values.readable_size(self._total)}  "
            f"{values.readable_size(round(self._copied / elapsed))}/s"
        )
        if now - self._advanced_at > _STALLED_AFTER_S:
            waiting = [(move.topic, move.partition) for move in left]
            self.say(
                f"no progress for {_STALLED_AFTER_S:.0f} s: {names(waiting)}. See the logs of the "
                f"brokers, or cancel: {self._how_to_cancel}"
            )

    def _look(self, left: list[Move]) -> None:
        try:
            view = snapshot(self._cluster).view
            sizes = replica_sizes(self._cluster, view.brokers.values())
        except ClientError:
            return  # the controller moved; the next look succeeds
        self._copied = self._copied_of(left, sizes)
        for broker in sorted({broker for move in left for broker in move.target}):
            if broker not in view.brokers:
                self.say(
                    f"broker {broker} is not registered; the reassignment waits for it. Start "
                    f"it, or cancel: {self._how_to_cancel}"
                )
            elif broker in sizes.troubles:
                self.say(
                    f"broker {broker}: {sizes.troubles[broker]}. The reassignment waits for it. "
                    f"Repair it, or cancel: {self._how_to_cancel}"
                )
        targets = {(move.topic, move.partition): move.target for move in left}
        for one in view.partitions:
            target = targets.get((one.topic, one.partition), [])
            for broker in one.offline_replicas:
                if broker in target and broker in view.brokers:
                    self.say(
                        f"{one.name} is offline on broker {broker}, whose log says why. Repair it "
                        f"and restart the broker, or cancel: {self._how_to_cancel}"
                    )
            if one.leader is None and target:
                self.say(
                    f"{one.name} has no leader, so nothing can be copied. Start an in-sync replica "
                    f"of it: {_one_of(one.isr)}"
                )

    def _copied_of(self, left: list[Move], sizes: ReplicaSizes) -> int:
        waiting = {(move.topic, move.partition) for move in left}
        copied = 0
        for move in self._todo:
            partition: Partition = (move.topic, move.partition)
            if partition not in waiting:
                copied += move.bytes_to_copy
                continue
            held = (sizes.by_replica.get((partition, broker), 0) for broker in move.added)
            copied += sum(min(size, move.size) for size in held)
        return copied

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            output.progress_over()
            output.note(text)


def _one_of(brokers: list[int]) -> str:
    return f"broker {' or '.join(map(str, sorted(brokers)))}"


def _listed(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


def statuses(cluster_now: Snapshot, targets: Mapping[Partition, list[int]]) -> dict[Partition, str]:
    """For each partition: completed, in progress, or why it is neither."""
    assigned = cluster_now.assigned
    found = {}
    for partition, target in targets.items():
        moving = cluster_now.reassigning.get(partition)
        if partition not in assigned:
            found[partition] = "does not exist"
        elif moving is not None:
            same = moving.target == target
            found[partition] = (
                "in progress" if same else f"being reassigned to {_listed(moving.target)}"
            )
        elif assigned[partition] == target:
            found[partition] = "completed"
        else:
            found[partition] = f"has the replicas {_listed(assigned[partition])}"
    return found
