"""Brokers of a cluster whose state is in a real ZooKeeper."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from headrace.coordination.zookeeper import ZooKeeperTree, close_session
from headrace.storage.checkpoint import ZOOKEEPER_SESSION
from tests.broker.test_cluster import Acknowledged, create, read_all
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.cut_proxy import CutProxy
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")

SOURCE = Path(__file__).parents[2] / "src"


def on(zookeeper, chroot, **settings):
    return {"zookeeper.connect": f"{zookeeper.connect}/{chroot}", **settings}


def read_nodes(zookeeper, chroot, *paths):
    async def read():
        tree = await ZooKeeperTree.open(
            f"{zookeeper.connect}/{chroot}", session_timeout_ms=6000, connection_timeout_ms=6000
        )
        try:
            return [await tree.get(path) for path in paths]
        finally:
            await tree.close()

    return asyncio.run(read())


def test_records_survive_the_clean_restart_of_every_broker(tmp_path, zookeeper):
    settings = on(zookeeper, "rolling", **{"zookeeper.session.timeout.ms": "6000"})
    with ClusterOnOneLoop(tmp_path, **settings) as cluster:
        assert described_setting(cluster, "0", "zookeeper.connect") == settings["zookeeper.connect"]
        create(cluster, min_insync_replicas="2")
        producer = Acknowledged(cluster)
        producer.send(b"first")
        for broker_id in range(3):
            cluster.stop(broker_id)
            producer.send(b"without %d" % broker_id)
            cluster.start(broker_id)
            wait_until(lambda: len(cluster.state("orders").isr) == 3)
        assert len(producer.values) == 4
        assert read_all(cluster, 4) == producer.values
    broker, topic, properties = (
        *read_nodes(zookeeper, "rolling", "/brokers/ids/0", "/brokers/topics/orders"),
        (tmp_path / "0" / "meta.properties").read_text(),
    )
    assert broker is None
    assert json.loads(topic.value)["version"] == 3
    assert "version=0" in properties and "broker.id=0" in properties


def described_setting(cluster, broker_id, name):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.BROKER, broker_id)
    return admin.describe_configs([resource])[resource].result(30)[name].value


def serve(tmp_path, zookeeper, chroot, *options):
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headrace", "serve", "--data", str(tmp_path / "data")),
            *("--listen", "127.0.0.1:0", "--ready-file", str(ready)),
            *("-X", f"zookeeper.connect={zookeeper.connect}/{chroot}", *options),
        ],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
    )
    return process, ready


def test_a_killed_broker_comes_back_within_its_session_timeout(tmp_path, zookeeper):
    """Its session lasts a minute; the new process ends it instead of waiting."""
    options = ("-X", "broker.id=7", "-X", "zookeeper.session.timeout.ms=60000")
    process, ready = serve(tmp_path, zookeeper, "killed", *options)
    try:
        wait_until(ready.exists)
        (before,) = read_nodes(zookeeper, "killed", "/brokers/ids/7")
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process, ready = serve(tmp_path, zookeeper, "killed", *options)
        wait_until(ready.exists)
        (after,) = read_nodes(zookeeper, "killed", "/brokers/ids/7")
        assert after.created_zxid > before.created_zxid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_write_whose_answer_is_lost_happens_once(tmp_path, zookeeper):
    with CutProxy(zookeeper.port) as proxy:
        through = SimpleNamespace(connect=f"127.0.0.1:{proxy.port}")
        options = ("-X", "broker.id=0", "-X", "zookeeper.session.timeout.ms=30000")
        process, ready = serve(tmp_path, through, "lost", *options)
        try:
            wait_until(ready.exists)
            admin = AdminClient({"bootstrap.servers": ready.read_text().strip()})
            proxy.lose_answers_from_the_next_write_on()
            created = admin.create_topics([NewTopic("orders", 1, 1)])["orders"]
            assert proxy.wait_for_lost_answer(30)
            proxy.cut()
            proxy.heal()
            created.result(30)
            topic, state = read_nodes(
                zookeeper,
                "lost",
                "/brokers/topics/orders",
                "/brokers/topics/orders/partitions/0/state",
            )
        finally:
            process.terminate()
            output, _ = process.communicate(timeout=30)
    assert (topic.zk_version, state.zk_version) == (0, 0)
    assert json.loads(state.value)["leader"] == 0
    assert "lost during a write" in output.decode() and "it was stored" in output.decode()


def test_a_taken_broker_id_is_refused_with_the_address_of_its_owner(tmp_path, zookeeper):
    settings = on(zookeeper, "taken", **{"zookeeper.session.timeout.ms": "2000"})
    (tmp_path / "other").mkdir()
    with ClusterOnOneLoop(tmp_path, 1, **settings) as cluster:
        process, _ = serve(
            tmp_path / "other",
            zookeeper,
            "taken",
            *("-X", "broker.id=0", "-X", "zookeeper.session.timeout.ms=500"),
        )
        try:
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 1
        assert f"in use by the live broker at {cluster.bootstrap_servers}" in output.decode()


def test_a_broker_without_an_id_gets_one_from_the_cluster(tmp_path, zookeeper):
    process, ready = serve(tmp_path, zookeeper, "drawn", "-X", "reserved.broker.max.id=2000")
    try:
        wait_until(ready.exists)
        assert "broker.id=2001" in (tmp_path / "data" / "meta.properties").read_text()
        (node,) = read_nodes(zookeeper, "drawn", "/brokers/ids/2001")
        assert node is not None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    other = tmp_path / "other"
    other.mkdir()
    process, _ = serve(other, zookeeper, "drawn", "-X", "broker.id.generation.enable=false")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "broker.id is not set" in output.decode()


def test_a_broker_whose_session_ends_registers_again(tmp_path, zookeeper):
    settings = on(zookeeper, "expired", **{"zookeeper.session.timeout.ms": "6000"})
    with ClusterOnOneLoop(tmp_path, 2, **settings) as cluster:
        create(cluster, replicas=2)
        producer = Acknowledged(cluster)
        producer.send(b"first")
        membership = cluster.brokers[cluster.controller_id].services.membership
        epoch = membership.broker_epoch
        session_id, password = (
            (tmp_path / str(cluster.controller_id) / ZOOKEEPER_SESSION).read_text().split()
        )
        ended = asyncio.run(
            close_session(
                settings["zookeeper.connect"],
                (int(session_id, 16), bytes.fromhex(password)),
                session_timeout_ms=6000,
                connection_timeout_ms=6000,
            )
        )
        assert ended
        wait_until(lambda: membership.broker_epoch > epoch)
        wait_until(lambda: cluster.controller_id >= 0)
        producer.send(b"second")
        wait_until(lambda: len(cluster.state("orders").isr) == 2)
        assert read_all(cluster, 2) == producer.values
