"""What ``headrace up`` shows of a cluster, and what it says about changes."""

from headrace.cli.cluster_view import BrokerView, ClusterView, PartitionView
from headrace.cli.up_status import COLUMNS, ProcessState, Status, changes


def view(isr=(1, 2), leader=1, controller=1, live=(1, 2)):
    brokers = {number: BrokerView(number, "127.0.0.1", 9091 + number, None) for number in live}
    partition = PartitionView("orders", 0, leader, [1, 2], list(isr), [], 1)
    return ClusterView("id", controller, brokers, [partition])


def status(seen, ended=None, zookeeper_runs=True):
    processes = tuple(
        ProcessState(number, f"127.0.0.1:{9091 + number}", 100 + number, (ended or {}).get(number))
        for number in (1, 2)
    )
    return Status(processes, zookeeper_runs, seen)


def test_a_row_for_each_broker():
    first, second = status(view(isr=[1], live=[1]), ended={2: -9}).rows()
    assert dict(zip(COLUMNS, first, strict=True)) == {
        "BROKER": 1,
        "ADDRESS": "127.0.0.1:9092",
        "PROCESS": 101,
        "STATUS": "running",
        "CONTROLLER": "yes",
        "LEADERS": 1,
        "REPLICAS": 1,
        "OUT-OF-SYNC": 0,
    }
    assert second == (2, "127.0.0.1:9093", 102, "killed by signal 9", None, 0, 1, 1)
    again = status(view(), ended={2: -9}).rows()[1]
    assert again[3] == "restarted"


def test_the_summary_names_what_is_wrong():
    assert status(view()).summary() == "all replicas in sync"
    assert status(view(isr=[1])).summary() == "1 partition under-replicated"
    lost = status(view(isr=[1], leader=None), zookeeper_runs=False).summary()
    assert lost == "ZooKeeper has ended, 1 partition offline, 1 partition under-replicated"
    assert status(None).summary() == "no broker answers"
    assert status(None).rows()[0][4:] == (None, None, None, None)


def test_changes_are_told_once():
    healthy = status(view())
    assert changes(healthy, healthy) == []
    killed = status(view(isr=[2], leader=2, controller=2), ended={1: -9})
    assert changes(healthy, killed) == [
        "broker 1 (process 101) killed by signal 9",
        "controller: broker 2",
        "1 partition under-replicated",
    ]
    assert changes(killed, killed) == []
    assert changes(killed, status(view(controller=None), ended={1: 0})) == [
        "no controller",
        "all replicas in sync",
    ]
