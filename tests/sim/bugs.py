"""Bugs that tests plant in the brokers, to prove that the simulation finds them.

Each replaces one function of the brokers while a run lasts. The numbers are those of the design's
correctness rules.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.broker.coordinators import runtime
from headrace.broker.replication import replica as replica_module
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.coordination.tree import ANY_VERSION, Check, Create, Done, Set
from headrace.coordination.writer import Writer
from headrace.core import elections
from headrace.core import partition as partition_module
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
    patches: tuple[Patch, ...]


def _bug(what: str, owner: Any, name: str, replacement: Callable[[Any], Any]) -> Bug:
    return Bug(what, (Patch(owner, name, replacement),))


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


def _does_not_guard(original: Any) -> Any:
    async def write(self: Any, operations: Any) -> Any:
        unguarded = [
            operation._replace(expected=ANY_VERSION)
            if isinstance(operation, Set | Check)
            else operation
            for operation in operations
        ]
        return await original(self, unguarded)

    return write


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


def _elects_any_replica(original: Any) -> Any:
    def elect(controller: Any, state: Any, gone: Any = ()) -> Any:
        return original(controller, state._replace(isr=state.replicas), gone)

    return elect


BUGS = {
    "rule-1": _bug(
        "The high watermark counts the confirmed ISR only",
        Leadership,
        "maximal_isr",
        lambda original: property(lambda self: self.isr),
    ),
    "rule-2-join": _bug(
        "A follower joins the ISR at a stale high watermark",
        Leadership,
        "may_join",
        lambda original: lambda self, progress: progress.log_end >= self.high_watermark,
    ),
    "rule-2-latest": _bug(
        "A new leader answers its stale high watermark as the latest offset",
        Leadership,
        "is_high_watermark_current",
        lambda original: property(lambda self: True),
    ),
    "rule-3": _bug(
        "A follower truncates to its high watermark",
        Partition,
        "_follow",
        _truncates_to_the_high_watermark,
    ),
    "rule-4-guess": _bug(
        "A write to the tree without an answer counts as stored",
        Writer,
        "_read_back",
        _guesses_that_it_was_stored,
    ),
    "rule-4-unguarded": _bug(
        "Writes to the tree name no version", Writer, "write", _does_not_guard
    ),
    "rule-5": Bug(
        "A broker that registers again is the same broker",
        (
            Patch(Controller, "brokers_changed", _ignores_broker_epochs),
            Patch(elections, "decide_takeover", _ignores_when_brokers_registered),
        ),
    ),
    "rule-6-controller": _bug(
        "Brokers obey a controller that was replaced",
        ControllerFence,
        "check",
        lambda original: lambda self, *epochs, is_kraft=False: ErrorCode.NONE,
    ),
    "rule-6-leader": Bug(
        "A leader serves followers and consumers of any leader epoch",
        (
            Patch(partition_module, "check_leader_epoch", lambda original: _accept_any),
            Patch(replica_module, "check_leader_epoch", lambda original: _accept_any),
        ),
    ),
    "rule-6-group": _bug(
        "A group takes commits of any generation and member",
        ClassicGroup,
        "check_commit",
        lambda original: lambda self, member, **options: None,
    ),
    "rule-7": _bug(
        "acks=all is answered once the leader has the batch",
        Leadership,
        "acknowledgement",
        lambda original: (
            lambda self, offset_end: ErrorCode.NONE if self.log_end >= offset_end else None
        ),
    ),
    "rule-8": _bug(
        "A lone leader advances the high watermark",
        Leadership,
        "_advance_high_watermark",
        _commits_below_the_minimum,
    ),
    "rule-9": _bug(
        "A late end of a transaction ends the producer's next one",
        end_txn,
        "_end_with_bump",
        _ends_any_transaction,
    ),
    "high-watermark-from-log-end": _bug(
        "A restarted broker takes its log end for the high watermark",
        LogManager,
        "high_watermark",
        lambda original: lambda self, place: self.get(place).log_end,
    ),
    "coordinator-up-to-high-watermark": _bug(
        "A coordinator loads its log only up to the high watermark",
        runtime,
        "replay_log",
        _loads_up_to_the_high_watermark,
    ),
    "empty-log-elected": Bug(
        "Any replica is elected, even one whose log is lost",
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
