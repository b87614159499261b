"""The checks of the cluster's health, one state of the cluster each."""

from headrace.cli.cluster_view import BrokerView, ClusterView, PartitionView
from headrace.cli.health import FAILED, OK, WARNING, BrokerFeatures, checks, is_healthy


def brokers(*ids):
    return {number: BrokerView(number, "localhost", 9091 + number, None) for number in ids}


def partition(number, leader, isr, replicas=(1, 2, 3), offline=(), min_isr=2):
    return PartitionView(
        "orders", number, leader, list(replicas), list(isr), list(offline), min_isr
    )


def checked(view, features=None, unreachable=None):
    found = checks(view, features or {}, unreachable or {})
    return {check.name: check for check in found}, is_healthy(found)


def view_of(*partitions, live=(1, 2, 3), controller=1):
    return ClusterView("id", controller, brokers(*live), list(partitions))


def test_a_cluster_with_full_isrs_is_healthy():
    found, healthy = checked(view_of(partition(0, 1, [1, 2, 3])))
    assert healthy and {check.status for check in found.values()} == {OK}


def test_a_dead_broker_is_missing_and_its_partitions_under_replicated():
    found, healthy = checked(view_of(partition(0, 2, [2, 3]), live=(2, 3), controller=2))
    assert not healthy
    assert found["brokers"].items == ["broker 1 is not registered"]
    assert found["under-replicated"].items == ["orders-0"]
    assert found["under min ISR"].status == found["offline partitions"].status == OK


def test_a_partition_without_a_leader_is_offline_and_under_min_isr():
    found, healthy = checked(view_of(partition(0, None, [1, 2])))
    assert not healthy
    assert found["offline partitions"].items == found["under min ISR"].items == ["orders-0"]


def test_no_controller_is_unhealthy():
    for controller in (None, 9):
        found, healthy = checked(view_of(controller=controller))
        assert not healthy and found["controller"].status == FAILED


def test_a_registered_broker_that_does_not_answer_is_unhealthy():
    found, healthy = checked(view_of(), unreachable={2: "cannot connect"})
    assert not healthy and found["brokers"].items == ["broker 2: cannot connect"]


def test_offline_replicas_of_a_live_broker_are_reported():
    found, _ = checked(view_of(partition(0, 1, [1, 3], offline=[2])))
    assert found["offline replicas"].items == ["orders-0 on broker 2"]
    found, _ = checked(view_of(partition(0, 1, [1, 3], offline=[2]), live=(1, 3)))
    assert found["offline replicas"].status == OK


def test_a_broker_that_does_not_support_a_finalized_level_is_unhealthy():
    new = BrokerFeatures({"group.version": 1}, {"group.version": 1})
    old = BrokerFeatures({}, {})
    found, healthy = checked(view_of(), features={1: new, 2: old})
    assert not healthy
    (item,) = found["feature levels"].items
    assert item.startswith("broker 2 supports group.version up to 0, but 1 is finalized")


def test_a_broker_of_kafka_3_9_is_healthy_once_the_levels_are_0():
    levels = {"metadata.version": 30, "group.version": 0}
    ours = BrokerFeatures({"metadata.version": 30, "group.version": 1}, levels)
    found, healthy = checked(view_of(), features={1: ours, 2: BrokerFeatures({}, {})})
    assert healthy and found["feature levels"].items == []


def test_leaders_away_from_their_preferred_broker_are_a_warning():
    skewed = view_of(*(partition(number, 2, [1, 2, 3]) for number in range(4)))
    found, healthy = checked(skewed)
    assert healthy and found["preferred leaders"].status == WARNING
    assert found["preferred leaders"].items[0].startswith("broker 1 leads 0 of 4")


def test_a_long_list_is_shortened():
    found, _ = checked(view_of(*(partition(number, 1, [1, 2]) for number in range(1200))))
    detail = found["under-replicated"].detail
    assert detail.startswith("1,200: orders-0, orders-1") and detail.endswith("and 1,195 more")
