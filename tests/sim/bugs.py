"""Bugs that tests plant in the brokers, to prove that the simulation finds them.

Each replaces one or two functions of the brokers while a run lasts. The numbers are those of the
design's correctness rules. ``seed`` is one that finds the bug; None for a bug that only the
simulation of the partition machines finds within a reasonable number of seeds.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.broker.coordinators import shards
from headrace.broker.handlers.produced import Outcome
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.coordination import controller_writes
from headrace.coordination.term_store import TermStore
from headrace.coordination.tree import ANY_VERSION, Create, Done, Set
from headrace.coordination.writer import Writer
from headrace.core import elections, reassignment
from headrace.core.controller import Controller
from headrace.core.controller_fencing import ControllerFence
from headrace.core.groups.classic.group import ClassicGroup
from headrace.core.leadership import Leadership
from headrace.core.partition import Partition
from headrace.core.partition_effects import Truncate
from headrace.core.transactions import end_txn
from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode
from headrace.storage.log_manager import LogManager


class Patch(NamedTuple):
    owner: Any
    name: str
    replacement: Callable[[Any], Any]  # of the original


class Bug(NamedTuple):
    what: str
    seed: int | None
    patches: tuple[Patch, ...]
    needs_moves: bool = False  # the other seeds are those of runs without reassignments


def _bug(
    what: str, seed: int | None, owner: Any, name: str, replacement: Callable[[Any], Any]
) -> Bug:
    return Bug(what, seed, (Patch(owner, name, replacement),))


def _commits_below_the_minimum(original: Any) -> Any:
    def advance(self: Any) -> Any:
        enough, self.enough_replicas = self.enough_replicas, True
        effects = original(self)
        self.enough_replicas = enough
        return effects

    return advance


def _truncates_to_the_high_watermark(original: Any) -> Any:
    def follow(self: Any, leader: Any, leader_epoch: Any) -> Any:
        return [Truncate(self.high_watermark), *original(self, leader, leader_epoch)]

    return follow


def _guesses_that_it_was_stored(original: Any) -> Any:
    async def read_back(self: Any, operations: Any) -> Any:
        def version(operation: Any) -> int:
            return 0 if isinstance(operation, Create) else operation.expected + 1

        return [Done(operation.path, version(operation), -1) for operation in operations]

    return read_back


def _expects_any_version(original: Any) -> Any:
    def operations(changes: Any, controller_epoch: Any) -> Any:
        writes = original(changes, controller_epoch)
        return [w._replace(expected=ANY_VERSION) if isinstance(w, Set) else w for w in writes]

    return operations


async def _writes_without_guard(self: Any, operations: Any) -> Any:
    return await self._writer.write(operations)


def _ignores_broker_epochs(original: Any) -> Any:
    def brokers_changed(self: Any, brokers: Any, controller_id: Any) -> Any:
        entries = list(brokers)
        known = self.metadata.brokers
        gone = {broker_id for broker_id in known if all(e.broker_id != broker_id for e in entries)}
        original(self, entries, controller_id)
        return gone

    return brokers_changed


def _ignores_when_brokers_registered(original: Any) -> Any:
    def decide(controller: Any, granted: Any, *others: Any) -> Any:
        return original(controller, dict.fromkeys(granted, 1 << 62), *others)

    return decide


class _LogUpTo:
    def __init__(self, log: Any, log_end: int) -> None:
        self._log = log
        self.log_end = log_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _loads_up_to_the_high_watermark(original: Any) -> Any:
    def replay(log: Any, shard: Any, is_wanted: Any) -> Any:
        loaded = inspect.getclosurevars(is_wanted).nonlocals["loaded"]
        return original(_LogUpTo(log, loaded.replica.high_watermark), shard, is_wanted)

    return replay


def _ends_any_transaction(original: Any) -> Any:
    def end(shard: Any, ticket: Any, known: Any, producer: Any, commit: bool, now: Any) -> Any:
        if known.state is State.ONGOING and known.producer_id == producer[0]:
            producer = (known.producer_id, known.producer_epoch)
        return original(shard, ticket, known, producer, commit, now)

    return end


def _obeys_any_controller(self: Any, *epochs: Any, is_kraft: bool = False) -> ErrorCode:
    return ErrorCode.NONE


def _applies_old_leader_epochs(original: Any) -> Any:
    def apply(self: Any, state: Any, *log: Any) -> Any:
        if state.leader_epoch < self.role.leader_epoch:
            self.role.leader_epoch = state.leader_epoch - 1
        return original(self, state, *log)

    return apply


def _elects_any_replica(original: Any) -> Any:
    def elect(controller: Any, state: Any, gone: Any = ()) -> Any:
        return original(controller, state._replace(isr=state.replicas), gone)

    return elect


def _ends_moves_early(original: Any) -> Any:
    def is_ready(controller: Any, state: Any) -> bool:
        live = controller.metadata.brokers
        return state.is_reassigning and all(each in live for each in state.target_replicas)

    return is_ready


def _counts_replicas_as_in_sync(original: Any) -> Any:
    def restricted(controller: Any, state: Any) -> Any:
        return original(controller, state._replace(isr=state.replicas))

    return restricted


BUGS = {
    "rule-1": _bug(
        "The high watermark counts the confirmed ISR only",
        None,
        Leadership,
        "maximal_isr",
        lambda original: property(lambda self: self.isr),
    ),
    "rule-2-join": _bug(
        "A follower joins the ISR at a stale high watermark",
        None,
        Leadership,
        "may_join",
        lambda original: lambda self, progress: progress.log_end >= self.high_watermark,
    ),
    "rule-2-latest": _bug(
        "A new leader answers its stale high watermark as the latest offset",
        49,
        Leadership,
        "is_high_watermark_current",
        lambda original: property(lambda self: True),
    ),
    "rule-3": _bug(
        "A follower truncates to its high watermark",
        16,
        Partition,
        "_follow",
        _truncates_to_the_high_watermark,
    ),
    "rule-4-guess": _bug(
        "A write to the tree without an answer counts as stored",
        6,
        Writer,
        "_read_back",
        _guesses_that_it_was_stored,
    ),
    "rule-4-unguarded": Bug(
        "States of partitions are written without a check of their version and of the controller",
        6,
        (
            Patch(controller_writes, "operations", _expects_any_version),
            Patch(TermStore, "write", lambda original: _writes_without_guard),
        ),
    ),
    "rule-5": Bug(
        "A broker that registers again is the same broker",
        2,
        (
            Patch(Controller, "brokers_changed", _ignores_broker_epochs),
            Patch(elections, "decide_takeover", _ignores_when_brokers_registered),
        ),
    ),
    "rule-6-controller": Bug(
        "Brokers obey requests of old controllers, with old leader epochs",
        30,
        (
            Patch(ControllerFence, "check", lambda original: _obeys_any_controller),
            Patch(Partition, "apply", _applies_old_leader_epochs),
        ),
    ),
    "rule-6-group": _bug(
        "A group takes commits of any generation and member",
        12,
        ClassicGroup,
        "check_commit",
        lambda original: lambda self, member, **options: None,
    ),
    "rule-7": _bug(
        "acks=all is answered once the leader has the batch",
        15,
        Outcome,
        "committed",
        lambda original: property(lambda self: True),
    ),
    "rule-8": _bug(
        "A lone leader advances the high watermark",
        None,
        Leadership,
        "_advance_high_watermark",
        _commits_below_the_minimum,
    ),
    "rule-9": _bug(
        "A late end of a transaction ends the producer's next one",
        1,
        end_txn,
        "_end_with_bump",
        _ends_any_transaction,
    ),
    "high-watermark-from-log-end": _bug(
        "A restarted broker takes its log end for the high watermark",
        None,
        LogManager,
        "high_watermark",
        lambda original: lambda self, place: self.get(place).log_end,
    ),
    "coordinator-up-to-high-watermark": _bug(
        "A coordinator loads its log only up to the high watermark",
        9,
        shards,
        "replay_log",
        _loads_up_to_the_high_watermark,
    ),
    "removed-too-early": Bug(
        "Replicas are removed before the added ones are in sync",
        9,
        (
            Patch(reassignment, "is_ready", _ends_moves_early),
            Patch(reassignment, "_restricted", _counts_replicas_as_in_sync),
        ),
        needs_moves=True,
    ),
    "empty-log-elected": Bug(
        "Any replica is elected, even one whose log is lost",
        25,
        (
            Patch(elections, "_elect_in_sync", _elects_any_replica),
            Patch(ReplicaManager, "_check_may_create", lambda original: _accept_any),
        ),
    ),
}


def _accept_any(*_: Any) -> None:
    """Instead of a check."""


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug while the context lasts."""
    with contextlib.ExitStack() as undo:
        for owner, attribute, replacement in BUGS[name].patches if name is not None else ():
            original = vars(owner)[attribute]
            undo.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, replacement(original))
        yield
