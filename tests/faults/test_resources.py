"""Exhausted resources: disk, file descriptors, slow clients, connections; and a second owner."""

import os
import resource
import socket
import struct
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.client.errors import Disconnected
from headrace.model.errors import ConfigError, ErrorCode
from headrace.net.listener import CreationRate
from headrace.testing import Broker
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until
from tests.faults.test_bad_input import a_batch

pytestmark = pytest.mark.slow

PAUSE_S = 0.2  # of a listener after a failed accept


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(small_disk):
    data = small_disk / "data"
    ballast = small_disk / "ballast"
    with Broker(data=data, topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as raw:
        assert raw.produce("t", a_batch(10)).base_offset == 0
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(65_536))
                    file.flush()
            except OSError:
                pass
        refused = [raw.produce("t", a_batch(2000)) for _ in range(5)]
        assert {answer.error_code for answer in refused} == {ErrorCode.KAFKA_STORAGE_ERROR}
        answer = raw.fetch("t", 0)
        assert (answer.error_code, answer.high_watermark) == (0, 10), "reads continue"
        ballast.unlink()
        assert raw.produce("t", a_batch(5)).base_offset == 10, "nothing half-written is left"
        broker.restart()
        with RawClient(broker.bootstrap_servers) as again:
            assert again.fetch("t", 0).high_watermark == 15


def test_out_of_file_descriptors_accepting_pauses_and_resumes(tmp_path):
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from headrace.cli.main import main\n"
        "sys.argv = ['headrace'] + sys.argv[1:]\n"
        "main()\n"
    )
    ready = tmp_path / "ready"
    command = [sys.executable, script, "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", tmp_path / "data", "--ready-file", ready]
    log = (tmp_path / "log").open("wb")
    child = subprocess.Popen(command, stdout=log, stderr=log)

    def pauses():
        return (tmp_path / "log").read_bytes().count(b"pauses accepting")

    try:
        wait_until(ready.exists)
        host, _, port = ready.read_text().strip().rpartition(":")
        with RawClient(f"{host}:{port}") as early:
            # Handlers are loaded on first use, or half a second after the start.
            assert early.metadata().brokers
            crowded_at = time.monotonic()
            crowd = [socket.create_connection((host, int(port)), 5) for _ in range(100)]
            assert early.metadata().brokers, "those already connected are served"
            wait_until(lambda: pauses() >= 4)
            elapsed_s = time.monotonic() - crowded_at
            assert pauses() <= 1 + elapsed_s / PAUSE_S, "no busy loop"
            for sock in crowd:
                sock.close()
            with RawClient(f"{host}:{port}") as late:
                assert late.metadata().brokers
        assert b"ulimit -n" in (tmp_path / "log").read_bytes()
    finally:
        child.terminate()
        assert child.wait(20) == 0
        log.close()


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path):
    with (
        Broker(data=tmp_path),
        pytest.raises(ConfigError, match="in use by another broker"),
        Broker(data=tmp_path),
    ):
        pass


def test_a_second_process_on_the_same_directory_is_refused(tmp_path):
    with Broker(data=tmp_path):
        command = [sys.executable, "-m", "headrace", "serve", "--listen", "127.0.0.1:0"]
        ended = subprocess.run(
            [*command, "--data", str(tmp_path)], capture_output=True, text=True, timeout=30
        )
    assert ended.returncode not in (0, None)
    assert "in use by another" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_client_that_never_reads_its_responses_delays_only_itself(headrace_broker):
    headrace_broker.create_topics(["large"])
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap_servers})
    for _ in range(50):
        producer.produce("large", bytes(500_000))
    producer.flush(30)
    deaf = RawClient(headrace_broker.bootstrap_servers)
    deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    from headrace.wire import messages as m
    from headrace.wire.api import ApiKey

    request = m.FetchRequest
    message = request(
        max_bytes=50_000_000,
        session_epoch=-1,
        topics=[
            request.FetchTopic(
                topic="large",
                partitions=[
                    request.FetchPartition(
                        partition=0, fetch_offset=0, partition_max_bytes=50_000_000
                    )
                ],
            )
        ],
    )
    for _ in range(20):
        deaf.post(ApiKey.FETCH, 11, message)
    with RawClient(headrace_broker.bootstrap_servers) as other:
        for _ in range(200):
            assert other.fetch("large", 0).error_code == 0
    deaf.sock.close()


def test_a_very_slow_client_does_no_harm(headrace_broker):
    slow = RawClient(headrace_broker.bootstrap_servers)
    whole = struct.pack(">ihhih", 14, 18, 0, 1, 4) + b"slow"
    with RawClient(headrace_broker.bootstrap_servers) as other:
        for byte in whole:
            slow.send(bytes([byte]))
            assert other.metadata().brokers
    assert slow.read_frame()[:4] == struct.pack(">i", 1)
    slow.sock.close()


def test_thousands_of_connections_do_not_delay_others(headrace_broker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2000
    if soft < 3 * count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * count), hard))
    host, _, port = headrace_broker.bootstrap_servers.rpartition(":")
    crowd = []
    try:
        with RawClient(headrace_broker.bootstrap_servers) as other:
            for number in range(count):
                crowd.append(socket.create_connection((host, int(port)), 10))
                if number % 100 == 0:
                    assert other.metadata().brokers
    finally:
        for sock in crowd:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_limits_on_connections_are_kept_and_freed():
    config = {"max.connections.per.ip": 3}
    with Broker(config=config) as broker:
        open_ones = [RawClient(broker.bootstrap_servers) for _ in range(3)]
        for raw in open_ones:
            assert raw.metadata().brokers
        with RawClient(broker.bootstrap_servers) as refused:
            assert refused.is_closed_by_broker()
        for raw in open_ones:
            raw.sock.close()
        give_up_at = time.monotonic() + 10
        while time.monotonic() < give_up_at:
            with RawClient(broker.bootstrap_servers) as again:
                try:
                    assert again.metadata().brokers
                    break
                except Disconnected:
                    continue
        else:
            pytest.fail("places of closed connections were not given back")


def test_a_listener_has_a_limit_of_its_own():
    config = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.outside.max.connections": 1,
    }
    with Broker(config=config) as broker:
        outside = "{}:{}".format(*Inside(broker).node.addresses["OUTSIDE"])
        with RawClient(outside) as first, RawClient(outside) as second:
            assert first.metadata().brokers
            assert second.is_closed_by_broker()
            for _ in range(3):
                with RawClient(broker.bootstrap_servers) as inside:
                    assert inside.metadata().brokers


def test_connections_above_the_rate_wait():
    with Broker(config={"max.connection.creation.rate": 20}) as broker:
        clients = [RawClient(broker.bootstrap_servers) for _ in range(30)]
        assert all(client.metadata().brokers for client in clients)
        for client in clients:
            client.sock.close()


def test_a_rate_admits_its_number_per_second():
    rate = CreationRate(4)
    let_in = []
    now = 1000.0
    while now < 1003:
        wait_s = rate.wait_s(now)
        if wait_s == 0:
            rate.connection_created()
            let_in.append(now)
        now += max(wait_s, 0.001)
    assert sum(at < 1000.2 for at in let_in) == 4, "the unused share of a quiet second"
    assert len(let_in) in (15, 16)
    assert CreationRate(0).wait_s(1.0) == 1


def test_idle_connections_are_closed_after_the_timeout():
    with (
        Broker(config={"connections.max.idle.ms": 300}) as broker,
        RawClient(broker.bootstrap_servers) as idle,
    ):
        assert idle.metadata().brokers
        assert idle.is_closed_by_broker()


def test_flipped_bits_are_truncated_at_the_next_start_and_earlier_records_stay(tmp_path):
    with Broker(data=tmp_path, topics=["t"], process=True) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce("t", b"%d" % number)
            producer.flush()
        broker.kill()
        segment = tmp_path / "t-0" / f"{0:020d}.log"
        content = bytearray(segment.read_bytes())
        content[-10] ^= 0xFF
        segment.write_bytes(content)
        (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(os.urandom(17))
        broker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition("t", 0)) == (0, 9)
        consumer.assign([TopicPartition("t", 0, 0)])
        values = [consumer.poll(10).value() for _ in range(9)]
        assert values == [b"%d" % number for number in range(9)]
        consumer.close()


def test_a_clock_that_jumps_back_changes_no_order(tmp_path):
    from headrace.world.world import World

    class Jumping(World):
        offset = 0

        def now(self):
            return super().now() + self.offset

    import asyncio

    from headrace.broker.broker import Broker as Node
    from headrace.model.config import BrokerConfig

    async def body():
        world = Jumping()
        node = Node(
            BrokerConfig.parse(
                {
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "log.dirs": str(tmp_path),
                    "log.message.timestamp.type": "LogAppendTime",
                }
            ),
            world=world,
        )
        await node.start()
        host, port = node.addresses["PLAINTEXT"]

        def load():
            with RawClient(f"{host}:{port}") as raw:
                raw.metadata(version=1)
                producer = Producer({"bootstrap.servers": f"{host}:{port}"})
                for number in range(30):
                    world.offset = -3_600_000 * (number % 3)
                    producer.produce("t", b"%d" % number)
                    producer.flush()
                answer = raw.fetch("t", 0)
                assert answer.high_watermark == 30

        await asyncio.to_thread(load)
        await node.stop()

    asyncio.run(body())
