"""The rate of throttled replication over its window."""

from headrace.core.replication_quota import UNLIMITED, ReplicationQuota


def test_a_burst_counts_over_the_whole_window():
    quota = ReplicationQuota(11, 1.0)
    assert not quota.is_exceeded(0, 5.0), "nothing was sent"
    quota.record(1000, 5.0)
    assert not quota.is_exceeded(100, 5.0), "1000 bytes in 10 s"
    quota.record(1, 5.5)
    assert quota.is_exceeded(100, 5.5)
    assert not quota.is_exceeded(101, 5.5)
    assert not quota.is_exceeded(UNLIMITED, 5.5)


def test_what_is_older_than_the_window_does_not_count():
    quota = ReplicationQuota(3, 2.0)
    quota.record(100, 0.0)
    quota.record(100, 2.0)
    assert quota.is_exceeded(30, 4.0)
    assert quota.is_exceeded(30, 5.9)
    assert not quota.is_exceeded(30, 6.0)
    assert not quota.is_exceeded(0, 9.0)


def test_a_steady_sender_is_within_its_rate():
    quota = ReplicationQuota(11, 1.0)
    sent, now = 0, 0.0
    while now < 100:
        if not quota.is_exceeded(50, now):
            quota.record(20, now)
            sent += 20
        now += 0.05
    assert 50 * 95 <= sent <= 50 * 112


def test_a_window_of_one_sample_is_not_empty():
    quota = ReplicationQuota(1, 1.0)
    quota.record(5, 0.0)
    assert quota.is_exceeded(4, 0.0)
    assert not quota.is_exceeded(5, 0.0)
