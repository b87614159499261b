"""One partition is compared on scripted replicas: who differs, who is left out."""

import pytest

from headrace.cli import verification
from headrace.cli.replica_fetching import Fetched, ReplicaPlaces
from headrace.cli.verification import PartitionVerification
from headrace.records.record import Record, build_batch

LEADER, FOLLOWER, OTHER = 1, 2, 3
PLACE = ReplicaPlaces("users", bytes(16), 0, LEADER, [LEADER, FOLLOWER, OTHER], [], True)


def batch(offset, key, value):
    return build_batch([Record(offset, 0, key, value)], base_offset=offset)


class Replicas:
    """One record in each log, and a second one that is written while the first is read."""

    def __init__(self):
        self.values = dict.fromkeys((LEADER, FOLLOWER, OTHER), b"right")
        self.fails_at = None  # broker and offset
        self.end = 1

    def fetch(self, cluster, place, brokers, offset, *, wait=True):
        self.end = 2 if wait else self.end
        return {broker: self._fetched(broker, offset, wait) for broker in brokers}

    def _fetched(self, broker, offset, wait):
        if wait and (broker, offset) == self.fails_at:
            return Fetched(error="connection lost")
        records = [batch(0, b"k", self.values[broker]), batch(1, b"l", b"later")][offset:]
        return Fetched(memoryview(b"".join(records if wait else [])), self.end, self.end, 0)


@pytest.fixture
def replicas(monkeypatch):
    scripted = Replicas()
    monkeypatch.setattr(verification, "fetch", scripted.fetch)
    monkeypatch.setattr(verification, "high_watermark", lambda cluster, place: 1)
    monkeypatch.setattr(verification, "PATIENCE_S", 0.0)
    return scripted


def compared():
    found = PartitionVerification(None, PLACE, lambda offset, end, size: None)
    found.run()
    return found


def test_a_leader_with_a_wrong_value_is_the_one_that_is_reported(replicas):
    replicas.values[LEADER] = b"wrong"
    found = compared()
    assert [(one.broker, one.is_tie) for one in found.differences] == [(LEADER, False)]
    assert found.skipped == []


def test_a_replica_that_fails_at_the_second_look_is_left_out_once(replicas):
    """Replicas differ, so the records since are read too, and there the leader fails."""
    replicas.values |= {FOLLOWER: b"a", OTHER: b"b"}
    replicas.fails_at = (LEADER, 1)
    found = compared()
    assert found.skipped == [(LEADER, "connection lost")]
    assert [(one.broker, one.is_tie) for one in found.differences] == [(OTHER, True)]
