"""A leader's high watermark, with one replica and with too few of them."""

from headrace.core.partition import HighWatermarkAdvanced, Leadership
from headrace.model.ids import BrokerId, LeaderEpoch, Offset

ME, OTHER = BrokerId(1), BrokerId(2)


def a_leadership(replicas=(ME,), isr=(ME,), min_insync=1, log_end=0, high_watermark=0):
    return Leadership(
        ME, LeaderEpoch(3), replicas, isr, min_insync, Offset(log_end), Offset(high_watermark)
    )


def test_a_lone_replica_commits_what_it_has_written():
    leadership = a_leadership()
    assert leadership.appended(Offset(5)) == [HighWatermarkAdvanced(Offset(5))]
    assert leadership.high_watermark == 5
    assert leadership.appended(Offset(5)) == []


def test_a_reign_begins_with_all_that_a_lone_replica_holds():
    leadership = a_leadership(log_end=7)
    assert leadership.started() == [HighWatermarkAdvanced(Offset(7))]


def test_a_lone_leader_below_the_minimum_does_not_advance_the_high_watermark():
    leadership = a_leadership(replicas=(ME, OTHER), isr=(ME,), min_insync=2)
    assert leadership.appended(Offset(5)) == []
    assert leadership.high_watermark == 0
    assert not leadership.enough_replicas


def test_a_minimum_above_the_replica_count_means_all_of_them():
    leadership = a_leadership(min_insync=3)
    assert leadership.insync_required == 1
    assert leadership.enough_replicas


def test_records_that_another_insync_replica_lacks_are_not_committed():
    leadership = a_leadership(replicas=(ME, OTHER), isr=(ME, OTHER))
    assert leadership.appended(Offset(5)) == []
    assert leadership.high_watermark == 0
