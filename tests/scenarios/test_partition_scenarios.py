"""Transcripts of one replica, broker 1: written by a person, answered by the machine.

``REWRITE=1`` writes the answers that the machine gives today; review them as a diff.

    replica end=5 hw=2 min=2 lag=10000  a replica with a log, its high watermark and its settings
    decide leader=1 epoch=3 isr=1,2     the controller's decision (all replicas are 1, 2, 3)
    at 10001                            move the clock
    tick
    append 2                            two records by a producer
    fetch 3 10                          broker 3 fetches at offset 10
    confirm 1,2,3                       the controller's answer to the proposal
    refuse NOT_APPLIED
    fetched end=9 hw=8 start=0          as follower: an answer of the leader
    diverged 0 8                        as follower: the leader's epoch 0 ends at 8
    ack 5                               what acks=all up to offset 5 is told
"""

import os
from pathlib import Path

import pytest

from headrace.core.isr import IsrRefusal
from headrace.core.leader_epochs import EpochEnd, LeaderEpochs
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition import Partition
from headrace.core.partition_effects import (
    LeaderEpochBumped,
    LeadershipGained,
    ProposeIsr,
    Truncate,
)
from tests.fakes.partition_states import a_state

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


def numbers(text):
    return tuple(int(number) for number in text.split(","))


def shown(value):
    if isinstance(value, (tuple, frozenset)):
        return "(" + " ".join(str(member) for member in sorted(value)) + ")"
    return str(value)


class Replica:
    def __init__(self):
        self.now = 0
        self.end = 0
        self.partition_epoch = 0
        self.epochs = LeaderEpochs()

    def answer(self, line):
        command, *words = line.split()
        named = dict(word.split("=") for word in words if "=" in word)
        effects = getattr(self, command)(*(word for word in words if "=" not in word), **named)
        lines = []
        for effect in effects or ():
            if isinstance(effect, str):
                lines.append(f"  {effect}")
                continue
            lines.append("  -> " + " ".join([type(effect).__name__, *self._fields(effect)]))
            match effect:
                case LeadershipGained(epoch, offset) | LeaderEpochBumped(epoch, offset):
                    self.epochs.assign(epoch, offset)
                case Truncate(to):
                    self.end = to
                    self.epochs.truncate_end(to)
        return [*lines, self.status()]

    def _fields(self, effect):
        if isinstance(effect, ProposeIsr):
            return [shown(effect.isr), f"partition_epoch={effect.partition_epoch}"]
        return [f"{name}={shown(getattr(effect, name))}" for name in effect.__slots__]

    def status(self):
        partition = self.partition
        always = f"epoch={partition.leader_epoch} hw={partition.high_watermark} end={self.end}"
        if (leadership := partition.leadership) is None:
            return f"follower of {partition.following.leader} {always}"
        asked = "" if leadership.proposal is None else f" asked={shown(leadership.proposed_isr)}"
        return f"leader {always} isr={shown(leadership.isr)}{asked}"

    # --- commands ------------------------------------------------------------

    def replica(self, end="0", hw="0", min="1", lag="30000", epochs=""):
        settings = ReplicationSettings(int(min), lag_time_ms_max=int(lag))
        self.end = int(end)
        self.partition = Partition(1, settings, int(hw))
        for entry in epochs.split(",") if epochs else ():
            self.epochs.assign(*(int(number) for number in entry.split("@")))

    def decide(self, leader, epoch, isr="1,2,3"):
        self.partition_epoch += 1
        state = a_state(int(leader), int(epoch), numbers(isr), partition_epoch=self.partition_epoch)
        return self.partition.apply(state, 0, self.end, self.now)

    def at(self, now):
        self.now = int(now)

    def tick(self):
        return self.partition.leadership.tick(self.now)

    def append(self, count, flushed=""):
        self.end += int(count)
        return self.partition.leadership.appended(self.end, int(flushed or self.end))

    def fetch(self, follower, offset):
        leadership = self.partition.leadership
        return leadership.follower_fetched(int(follower), int(offset), -1, -1, self.now)

    def confirm(self, isr):
        self.partition_epoch += 1
        leadership = self.partition.leadership
        return leadership.isr_confirmed(
            leadership.proposal, frozenset(numbers(isr)), self.partition_epoch, self.now
        )

    def refuse(self, refusal):
        leadership = self.partition.leadership
        return leadership.isr_refused(leadership.proposal, IsrRefusal[refusal], self.now)

    def ack(self, offset_end):
        code = self.partition.leadership.acknowledgement(int(offset_end))
        return ["waits" if code is None else code.name]

    def fetched(self, end, hw, start="0"):
        self.end = int(end)
        return self.partition.following.fetched(int(hw), int(start), 0, self.end)

    def diverged(self, epoch, end):
        leader_end = EpochEnd(int(epoch), int(end))
        return self.partition.following.diverged(leader_end, self.epochs, 0, self.end)


def play(text):
    """The transcript with the machine's answers in place of the written ones."""
    replica = Replica()
    played = []
    for paragraph in text.strip().split("\n\n"):
        asked = paragraph.split("\n----")[0].splitlines()
        answers = [replica.answer(line) for line in asked if not line.startswith("#")]
        # Of several commands the effects of all are shown, and the state after the last.
        effects = [line for answer in answers for line in answer[:-1]]
        played.append("\n".join([*asked, "----", *effects, answers[-1][-1]]))
    return "\n\n".join(played) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_machine_answers_as_written(path):
    text = path.read_text()
    played = play(text)
    if os.environ.get("REWRITE"):
        path.write_text(played)
    else:
        assert played == text
