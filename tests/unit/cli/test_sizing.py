"""The size of a cluster for a load."""

from pathlib import Path

import pytest

from headrace.cli import sizing
from headrace.cli.sizing import Load, size_cluster

DAY = 86_400
PAGE = Path(__file__).parents[3] / "docs" / "sizing.md"


def test_a_small_load_needs_as_many_brokers_as_replicas():
    found = size_cluster(Load(1, DAY))
    assert (found.brokers, found.partitions) == (3, 6)
    assert size_cluster(Load(1, DAY, replicas=1)).brokers == 1


def test_brokers_follow_the_processor_time_and_one_may_be_down():
    load = Load(1000, DAY, replicas=3, readers=2)
    found = size_cluster(load)
    cores = 0.60 + 2 * 1.44 + 2 * 0.30
    assert found.core_share * found.brokers == pytest.approx(cores)
    assert cores / (found.brokers - 1) <= sizing.CORE_SHARE_MAX < cores / (found.brokers - 2)


def test_partitions_follow_the_consumers_and_spread_evenly():
    found = size_cluster(Load(100, DAY, consumer_rate=1))
    assert found.partitions >= 100 and found.partitions % found.brokers == 0


def test_disk_holds_the_retention_of_all_replicas():
    found = size_cluster(Load(10, 7 * DAY, replicas=2))
    stored = 10 * 2 * 7 * DAY
    assert stored / 0.75 < found.disk_total < 2 * stored
    assert found.disk * found.brokers == pytest.approx(found.disk_total)


def test_a_short_retention_does_not_count_whole_segments():
    stored = 0.01 * 3 * 60
    assert size_cluster(Load(0.01, 60)).disk_total == pytest.approx(2 * stored / 0.75)


def test_every_record_travels_once_in_and_out_per_replica_and_reader():
    found = size_cluster(Load(30, DAY, replicas=3, readers=4))
    assert found.network_in * found.brokers == pytest.approx(90)
    assert found.network_out * found.brokers == pytest.approx(180)


def test_the_page_has_the_numbers_that_the_command_uses():
    text = PAGE.read_text()
    for number in (
        f"{sizing.LEADER_S_PER_GB:.2f} s", f"{sizing.REPLICA_S_PER_GB:.2f} s",
        f"{sizing.READER_S_PER_GB:.2f} s", f"{sizing.BROKER_MB:.0f} MB",
        f"{1000 * sizing.PARTITION_MB:.0f} KB", f"{sizing.CACHED_SECONDS} s",
    ):  # fmt: skip
        assert number in text, number
