"""The faults of one run, drawn from the seed before the run begins.

Each fault has its time and its length, and needs no dice while it happens. So a run without one of
them (``--without N``) has the same others.
"""

import random
from typing import NamedTuple

TREE = "tree"
CLIENTS = ("clients-0", "clients-1")  # two hosts


class Fault(NamedTuple):
    number: int
    at: float  # seconds after the start
    kind: str
    broker_id: int
    lasts_s: float = 0.0
    other: str = ""  # the host at the other end of a cut or a delay
    amount: float = 0.0  # what that is depends on the kind

    def __str__(self) -> str:
        text = f"{self.number:3}  {self.at:7.3f} s  {self.kind} broker {self.broker_id}"
        if self.other:
            text += f" and {self.other}"
        if self.lasts_s:
            text += f" for {self.lasts_s:.3f} s"
        if self.amount:
            text += f" ({self.amount:.3f})"
        return text


# Kinds and how often they are drawn. The seed changes these weights too.
_WEIGHTS = {
    "kill": 4,
    "kill in a write of": 2,
    "power loss of": 2,
    "remove the logs of": 1,
    "stop": 1,  # a clean shutdown, and a start after ``lasts_s``
    "pause": 3,
    "cut between": 4,
    "isolate": 3,  # from all other brokers and the tree, but not from clients
    "delay between": 2,
    "expire the session of": 2,
    "reset connections of": 3,
    "jump the clock of": 1,
    "fill the disk of": 1,
    "create and delete a topic beside": 1,
    "prefer": 2,  # an election of preferred leaders, asked of this broker
    # The controller loses its session while its requests to this broker are held back.
    "replace the controller, cut off from": 1,
    # Its node is deleted, and it acts before it hears of that and of the end of this session.
    "depose the controller, and expire the session of": 1,
}
_CONTROLLER_CHANGES = [kind for kind in _WEIGHTS if "controller" in kind]


# Drawn apart from the others, so that these do not depend on them.
REASSIGN = "reassign a partition to"  # this broker and ``other``; ``amount`` draws which one
CANCEL = "cancel all reassignments, asked of"


class Times(NamedTuple):
    """In seconds, drawn once for a run."""

    duration: float
    session_timeout: float
    replica_lag: float
    fault_every: float
    fault_lasts: float


def draw_times(dice: random.Random) -> Times:
    return Times(
        duration=dice.uniform(5, 11),
        session_timeout=dice.choice([0.5, 1.5, 4.0]),
        replica_lag=dice.choice([0.5, 1.0, 3.0]),
        fault_every=dice.choice([0.3, 0.7, 1.5]),
        fault_lasts=dice.choice([0.3, 1.0, 3.0]),
    )


def draw_faults(dice: random.Random, times: Times, broker_ids: list[int]) -> list[Fault]:
    kinds = [kind for kind in _WEIGHTS if dice.random() < 0.6] or ["kill"]
    weights = [_WEIGHTS[kind] * dice.uniform(0.2, 1) for kind in kinds]
    faults = []
    at = dice.uniform(0, 2)
    while at < times.duration:
        (kind,) = dice.choices(kinds, weights)
        broker_id = dice.choice(broker_ids)
        hosts = [f"broker-{b}" for b in broker_ids if b != broker_id] + [TREE, *CLIENTS]
        other, lasts_s = dice.choice(hosts), dice.uniform(0, 2 * times.fault_lasts)
        amount = dice.random()
        fault = Fault(len(faults), at, kind, broker_id)
        match kind:
            case "cut between":
                fault = fault._replace(other=other, lasts_s=lasts_s)
            case "delay between":
                fault = fault._replace(other=other, lasts_s=lasts_s, amount=amount * 0.4)
            case "kill in a write of":
                fault = fault._replace(lasts_s=lasts_s, amount=amount)
            case "jump the clock of":
                fault = fault._replace(amount=(amount - 0.5) * 120)
            case "expire the session of" | "reset connections of" | "prefer":
                pass
            case _:
                fault = fault._replace(lasts_s=lasts_s)
        faults.append(fault)
        at += dice.uniform(0, 2 * times.fault_every)
    # What an old controller does last is not repaired by the faults that follow.
    last = dice.choice([None, *_CONTROLLER_CHANGES])
    if last is not None:
        at, broker_id = times.duration - dice.random(), dice.choice(broker_ids)
        faults.append(Fault(len(faults), at, last, broker_id, lasts_s=1.0))
    return faults


def draw_moves(
    dice: random.Random, times: Times, broker_ids: list[int], first_number: int
) -> list[Fault]:
    """Reassignments, in three of four runs: to as many replicas as before, or to fewer."""
    if dice.random() < 0.25:
        return []
    moves: list[Fault] = []
    every_s = dice.choice([0.3, 0.8, 2.0])
    at = dice.uniform(0, 2 * every_s)
    while at < times.duration:
        number = first_number + len(moves)
        first, *others = dice.sample(broker_ids, dice.choice([2, 3, 3]))
        if dice.random() < 0.15:
            moves.append(Fault(number, at, CANCEL, first))
        else:
            rest = ",".join(map(str, others))
            moves.append(Fault(number, at, REASSIGN, first, other=rest, amount=dice.random()))
        at += dice.uniform(0, 2 * every_s)
    return moves
