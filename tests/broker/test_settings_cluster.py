"""Settings of clusters, each seen in the behavior of running brokers."""

import logging

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.broker.controller.events import Events
from headrace.broker.controller.leaders import Leaders
from headrace.broker.controller.rebalancing import Rebalancing
from headrace.coordination.registry import Registry
from tests.broker.test_cluster import Acknowledged, create, read_all
from tests.broker.test_reassignment import in_progress, is_assigned, reassign
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.waiting import wait_until


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_broker_asks_for_its_shutdown_only_if_that_is_enabled(tmp_path, caplog, enabled):
    caplog.set_level(logging.INFO)
    settings = {"controlled.shutdown.enable": enabled}
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        create(cluster, replicas=2)
        leader = cluster.state("orders").leader
        cluster.stop(leader)
        wait_until(lambda: cluster.state("orders").leader not in (leader, -1))
    assert ("Controlled shutdown: other brokers now lead" in caplog.text) is (enabled == "true")


@pytest.mark.parametrize(
    ("enabled", "percentage", "goes_back"),
    [("true", "10", True), ("true", "100", False), ("false", "10", False)],
)
def test_leadership_goes_back_to_the_preferred_leader(tmp_path, enabled, percentage, goes_back):
    settings = {
        "auto.leader.rebalance.enable": enabled,
        "leader.imbalance.per.broker.percentage": percentage,
        "leader.imbalance.check.interval.seconds": "1",
    }
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        create(cluster, replicas=2)
        create(cluster, "second", replicas=2)
        preferred = cluster.state("orders").leader
        other = 1 - preferred
        cluster.kill(preferred)
        wait_until(lambda: cluster.state("orders").leader == other)
        cluster.start(preferred)
        wait_until(lambda: len(cluster.state("orders", broker_id=preferred).isr) == 2)
        if goes_back:
            wait_until(lambda: cluster.state("orders").leader == preferred)
        else:
            services = cluster.brokers[cluster.controller_id].services
            term, config = services.member_controller._current.term, services.dynamic_config
            cluster.run(Rebalancing(term, Events(), Leaders(term, config), config).rebalance())
            assert cluster.state("orders").leader == other


def test_brokers_talk_on_the_listener_that_is_named_for_them(tmp_path):
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        for broker in cluster.brokers.values():
            counts = broker.services.limits.count_by_listener
            assert counts["CLIENTS"] == 0 and counts["INSIDE"] > 0
        bootstrap = ",".join(
            "{}:{}".format(*broker.addresses["CLIENTS"]) for broker in cluster.brokers.values()
        )
        producer = Acknowledged(cluster, **{"bootstrap.servers": bootstrap})
        create(cluster, replicas=2)
        producer.send(b"x")
        assert read_all(cluster, 1) == [b"x"]


def test_brokers_talk_on_the_listener_with_the_protocol_that_is_set(tmp_path):
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "security.inter.broker.protocol": "PLAINTEXT",
    }
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        for broker in cluster.brokers.values():
            counts = broker.services.limits.count_by_listener
            assert counts["CLIENTS"] == 0 and counts["PLAINTEXT"] > 0


def test_the_controller_gives_a_silent_broker_up_after_the_socket_timeout(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "headrace.controller")
    settings = {"controller.socket.timeout.ms": "300"}
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        silent = 1 - cluster.controller_id
        membership = cluster.brokers[silent].services.membership

        async def let_go():
            membership.applying.release()

        cluster.run(membership.applying.acquire())
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        created = admin.create_topics([NewTopic("orders", 1, 2)])["orders"]
        try:
            wait_until(lambda: "no response to LeaderAndIsrRequest within 0.3 s" in caplog.text)
        finally:
            cluster.run(let_go())
        created.result(30)
        assert cluster.state("orders", broker_id=silent) is not None


THROTTLES = {
    "leader": ("leader.replication.throttled.rate", "leader.replication.throttled.replicas"),
    "follower": ("follower.replication.throttled.rate", "follower.replication.throttled.replicas"),
}
SOURCE, TARGET = 0, 1


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("named", ["*", "1:{other},0:{throttled}"])
def test_a_throttled_replica_is_held_back_until_the_rate_allows_it(tmp_path, side, named):
    rate, replicas = THROTTLES[side]
    throttled, other = (SOURCE, TARGET) if side == "leader" else (TARGET, SOURCE)
    lists = {
        "held": named.format(throttled=throttled, other=other),
        "free": "",
        "other": f"0:{other},1:{throttled}",  # names no replica that moves
    }
    settings = {"replica.fetch.max.bytes": "2000", "replica.fetch.wait.max.ms": "50"}
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        made = [
            NewTopic(name, 1, replica_assignment=[[SOURCE]], config={replicas: text})
            for name, text in lists.items()
        ]
        for done in admin.create_topics(made).values():
            done.result(30)
        producer = Acknowledged(cluster, **{"batch.size": "1500"})
        for name in lists:
            producer.send(*(b"%d" % n * 300 for n in range(30)), topic=name)
        configs = Registry(cluster.tree_session(), 99).configs
        cluster.run(configs.store("brokers", "<default>", {rate: "1"}))
        for broker in cluster.brokers.values():
            wait_until(lambda b=broker: b.services.dynamic_config.config.int(rate) == 1)
        reassign(cluster, {("held", 0): [SOURCE, TARGET]})
        hosted = cluster.brokers[TARGET].services.replicas
        wait_until(lambda: (r := hosted.get("held", 0)) is not None and r.log.log_end > 0)
        # The others begin later and end, while the first one is held back.
        reassign(cluster, {("free", 0): [SOURCE, TARGET], ("other", 0): [SOURCE, TARGET]})
        for name in ("free", "other"):
            wait_until(lambda n=name: is_assigned(cluster, n, 0, [SOURCE, TARGET]))
        assert in_progress(cluster).keys() == {("held", 0)}
        assert hosted.get("held", 0).log.log_end < 30

        cluster.run(configs.store("brokers", "<default>", {}))
        wait_until(lambda: is_assigned(cluster, "held", 0, [SOURCE, TARGET]))
        # In sync, it is not held back, whatever the rate is.
        cluster.run(configs.store("brokers", "<default>", {rate: "1"}))
        producer.send(b"last", topic="held")
        wait_until(lambda: hosted.get("held", 0).log.log_end == 31)
