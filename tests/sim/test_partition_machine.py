"""Replicas that die, lag and move: no committed record is lost, and all agree in the end.

Every rule is also broken on purpose: the simulation has to notice. ``SEEDS`` in the environment
is a range such as 1-2000, or one seed to replay.
"""

import os

import pytest

from headrace.core import partition as partition_module
from headrace.core.leadership import Leadership
from headrace.core.partition import Partition
from tests.fakes.broken_partitions import (
    AcknowledgesWhatTheLeaderHas,
    AnswersLatestAtOnce,
    CommitsBelowTheMinimum,
    CountsTheConfirmedIsrOnly,
    JoinsAtTheHighWatermark,
    KeepsProgressAcrossSkippedEpochs,
    TruncatesToTheHighWatermark,
)
from tests.sim.partition_world import World

VALUE_COUNT = 250
LIMIT_MS = 60_000


def seeds():
    first, _, last = os.environ.get("SEEDS", "1-200").partition("-")
    return range(int(first), int(last or first) + 1)


def simulate(seed, partition_class=Partition, **options):
    """First safety under faults, then progress once the faults stop."""
    world = World(seed, partition_class, **options)
    scheduler = world.scheduler
    scheduler.run(lambda: world.value_count >= VALUE_COUNT, LIMIT_MS)
    world.heal()
    goal = len(world.committed) + 20
    assert scheduler.run(lambda: len(world.committed) >= goal, LIMIT_MS), "nothing is committed"
    world.has_producers = False
    assert scheduler.run(world.is_whole, LIMIT_MS), "the replicas do not converge"
    return world


def test_no_committed_record_is_lost_when_brokers_die_and_leaders_move():
    for seed in seeds():
        try:
            simulate(seed)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure


def test_a_run_is_a_function_of_its_seed():
    first, second = simulate(5), simulate(5)
    assert first.committed == second.committed
    assert first.now == second.now


@pytest.mark.parametrize(
    "broken",
    [
        CountsTheConfirmedIsrOnly,
        JoinsAtTheHighWatermark,
        AnswersLatestAtOnce,
        TruncatesToTheHighWatermark,
        AcknowledgesWhatTheLeaderHas,
        CommitsBelowTheMinimum,
        KeepsProgressAcrossSkippedEpochs,
    ],
)
def test_a_broken_rule_is_found(broken, monkeypatch):
    partition_class = broken if issubclass(broken, Partition) else Partition
    if issubclass(broken, Leadership):
        monkeypatch.setattr(partition_module, "Leadership", broken)
    for seed in range(1, 2001):
        try:
            simulate(seed, partition_class)
        except AssertionError:
            return
    raise AssertionError(f"{broken.__name__} was not found by 2000 seeds")


def test_a_high_watermark_restored_from_the_log_end_is_found():
    for seed in range(1, 2001):
        try:
            simulate(seed, restore_high_watermark=lambda checkpointed, log_end: log_end)
        except AssertionError:
            return
    raise AssertionError("it was not found by 2000 seeds")
