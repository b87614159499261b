"""A cluster of an earlier version is rolled to the working tree and back, under load.

Producers with and without idempotence, readers and groups of both protocols go on meanwhile, and a
checker judges the whole history. Transactions run in a cluster of their own.

The baseline accepts connections before it knows the cluster: in the first milliseconds after its
start it answers Metadata with no brokers. librdkafka then drops all its brokers and may stall for
minutes ("no usable brokers"). The working tree waits for its first metadata instead (commit
dfc12302), but the baseline stays as it is, so the test replaces clients in that state, as a
supervisor would. The checker judges them like all others. Remove ``replaces_lost`` and its code in
``StockClients`` when the baseline contains that commit.
"""

import itertools
import subprocess

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients
from tests.torture import exactly_once
from tests.upgrade import versions
from tests.upgrade.rolled_cluster import BROKERS, RolledCluster
from tests.upgrade.versions import WORKING_TREE, CommitMissing, baseline_commit, build_version

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

PARTITIONS = 2
TOPICS = {
    "plain": {"idempotent": False},
    "idempotent": {"compression": "lz4"},
}


@pytest.fixture(scope="module")
def baseline(is_torture, tmp_path_factory):
    try:
        return build_version(baseline_commit(), tmp_path_factory.mktemp("baseline"))
    except CommitMissing as missing:
        not_tested(missing, is_torture)


def not_tested(missing, is_torture):
    """make torture is the proof: it must not pass without it. make test may."""
    if is_torture:
        pytest.fail(f"upgrades were not tested: {missing}", pytrace=False)
    pytest.skip(str(missing))


def create_topics(cluster, partitions):
    """``partitions``: their number, by topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    made = [NewTopic(name, count, BROKERS) for name, count in partitions.items()]
    for future in admin.create_topics(made, operation_timeout=30).values():
        future.result(60)


def test_the_baseline_runs_its_own_code(baseline):
    assert WORKING_TREE.package() != baseline.package()
    assert baseline.python.parents[1] in baseline.package().parents


def test_a_cluster_is_rolled_to_the_working_tree_and_back_under_load(
    baseline, tmp_path, torture_rounds
):
    history = History()
    with (
        RolledCluster(tmp_path, [baseline] * BROKERS) as cluster,
        StockClients(history, cluster, replaces_lost=True) as clients,
    ):
        create_topics(cluster, dict.fromkeys(TOPICS, PARTITIONS))
        for name, options in TOPICS.items():
            clients.produce(name, name, PARTITIONS, **options)
        for protocol in ("classic", "consumer"):
            clients.join(protocol, protocol, ["idempotent"], protocol=protocol)
        # In make test: one way there and back, each broker stopped cleanly.
        for number in range(max(1, torture_rounds // 2)):
            for version in (WORKING_TREE, baseline):
                for broker_id in rolling_order(cluster, number):
                    clients.wait_progress()
                    cluster.roll(broker_id, version, clean=number % 2 == 0)
                    for topic in TOPICS:
                        cluster.wait_in_sync(topic)
        clients.finish()
        assert {node.version for node in cluster.nodes} == {baseline}
    assert anomalies(history) == []
    print(
        f"{clients.acknowledged_count} records acknowledged over two versions: no anomaly; "
        f"{clients.replaced_count} clients replaced"
    )


def rolling_order(cluster, number):
    """Operators leave the controller for the end; the other way around must work, too."""
    controller = cluster.controller_id()
    others = [node.broker_id for node in cluster.nodes if node.broker_id != controller]
    return [controller, *others] if number % 2 else [*others, controller]


def test_transactions_are_exactly_once_while_brokers_change_their_version(
    baseline, tmp_path, torture_rounds
):
    steps = itertools.cycle(itertools.product((WORKING_TREE, baseline), range(BROKERS)))

    def roll(_dice, cluster):
        version, broker_id = next(steps)
        cluster.roll(broker_id, version)
        for topic in exactly_once.TOPICS:
            cluster.wait_in_sync(topic)
        return "roll"

    with RolledCluster(tmp_path, [baseline] * BROKERS) as cluster:
        create_topics(cluster, exactly_once.TOPICS)
        exactly_once.exactly_once(cluster, tmp_path, torture_rounds, roll)


def test_without_the_commit_make_torture_fails_and_make_test_skips():
    missing = CommitMissing("this clone does not have the commit")
    with pytest.raises(pytest.skip.Exception, match="does not have the commit"):
        not_tested(missing, is_torture=False)
    with pytest.raises(pytest.fail.Exception, match="upgrades were not tested: this clone"):
        not_tested(missing, is_torture=True)


def test_a_clone_without_the_commit_says_so_and_fetches_nothing(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    with pytest.raises(CommitMissing, match="does not have commit .* git fetch --unshallow"):
        build_version(baseline_commit(), tmp_path / "built")
    assert not (tmp_path / "built").exists()
