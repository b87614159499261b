"""Settings of listeners, connections and requests: each one changes what a client meets."""

import os
import select
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from headrace.client.errors import Disconnected
from headrace.model.errors import ConfigError
from headrace.records.record import Record, build_batch, iter_records
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.raw_client import RawClient

DESCRIPTORS = Path("/proc/self/fd")


def own_sockets():
    """A duplicate of every TCP socket of this process; the broker is on one of its threads."""
    if not DESCRIPTORS.exists():
        pytest.skip("needs /proc")
    found = []
    for path in DESCRIPTORS.iterdir():
        with suppress(OSError):
            sock = socket.socket(fileno=os.dup(int(path.name)))
            if sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM:
                found.append(sock)
            else:
                sock.close()
    return found


def listening(sock):
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def ports_listened_on():
    sockets = own_sockets()
    try:
        return {sock.getsockname()[1] for sock in sockets if listening(sock)}
    finally:
        for sock in sockets:
            sock.close()


def is_refused(broker):
    with RawClient(broker.bootstrap_servers) as client:
        try:
            client.metadata()
        except Disconnected:
            return True
    return False


# --- addresses and identity


def test_a_node_has_the_id_the_rack_and_the_addresses_that_its_settings_give():
    before = ports_listened_on()
    config = {
        "broker.id": 7,
        "broker.rack": "rack-1",
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,CONTROL://127.0.0.1:0",
        "advertised.listeners": "INSIDE://inside.example:1111,OUTSIDE://outside.example:2222",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROL:PLAINTEXT",
        "controller.listener.names": "CONTROL",
    }
    with Broker(config=config) as broker:
        opened = ports_listened_on() - before
        assert len(opened) == 2, "the controller listener is not opened"
        told = set()
        for port in opened:
            with RawClient(f"127.0.0.1:{port}") as client:
                (entry,) = client.metadata().brokers
                assert (entry.node_id, entry.rack) == (7, "rack-1")
                told.add((entry.host, entry.port))
        assert told == {("inside.example", 1111), ("outside.example", 2222)}
        assert int(broker.bootstrap_servers.rpartition(":")[2]) in opened


def test_node_id_is_the_number_of_the_node():
    with Broker(config={"node.id": 42}) as broker, RawClient(broker.bootstrap_servers) as client:
        assert client.metadata().controller_id == 42


def test_a_process_without_the_broker_role_does_not_start():
    with pytest.raises(ConfigError, match=r"process\.roles=controller"):
        Broker(config={"process.roles": "controller"}).start()
    with Broker(config={"process.roles": "broker,controller"}) as broker:
        assert not is_refused(broker)


# --- sockets


def test_socket_buffers_and_the_backlog_have_the_sizes_of_their_settings():
    config = {
        "socket.receive.buffer.bytes": 50_000,
        "socket.send.buffer.bytes": 60_000,
        "socket.listen.backlog.size": 3,
    }
    with Broker(config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        client.metadata()
        sockets = own_sockets()
        try:
            port = client.sock.getpeername()[1]
            (listener,) = [s for s in sockets if listening(s) and s.getsockname()[1] == port]
            # Linux: the second number of a listening socket's queue, in ``tcp_info``.
            tcp_info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
            assert struct.unpack_from("=I", tcp_info, 28) == (3,)
            (accepted,) = [
                s for s in sockets
                if not listening(s) and s.getpeername() == client.sock.getsockname()
            ]  # fmt: skip
            # Linux doubles what is asked for.
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 120_000
        finally:
            for sock in sockets:
                sock.close()


# --- connections


def test_max_connections_refuses_the_next_one():
    with Broker(config={"max.connections": 2}) as broker, ExitStack() as open_ones:
        for _ in range(2):
            client = open_ones.enter_context(RawClient(broker.bootstrap_servers))
            assert client.metadata().brokers
        assert is_refused(broker)


def test_a_host_may_have_a_limit_of_its_own():
    config = {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "127.0.0.1:2"}
    with Broker(config=config) as broker, ExitStack() as open_ones:
        for _ in range(2):
            client = open_ones.enter_context(RawClient(broker.bootstrap_servers))
            assert client.metadata().brokers
        assert is_refused(broker)


def test_connections_beyond_the_creation_rate_wait():
    with Broker(config={"max.connection.creation.rate": 10}) as broker, ExitStack() as open_ones:
        started = time.monotonic()
        for _ in range(13):
            client = open_ones.enter_context(RawClient(broker.bootstrap_servers))
            assert client.metadata().brokers
        # Ten at once, three more at a tenth of a second each.
        assert time.monotonic() - started >= 0.25


def test_an_idle_connection_is_closed_after_its_time():
    config = {"connections.max.idle.ms": 300}
    with Broker(config=config) as broker, RawClient(broker.bootstrap_servers) as idle:
        assert idle.metadata().brokers
        assert idle.is_closed_by_broker()


# --- requests


def test_a_request_above_its_limit_closes_the_connection():
    config = {"socket.request.max.bytes": 10_000}
    with Broker(config=config, topics=["t"]) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            small = build_batch([Record(0, -1, None, bytes(9_000))])
            assert client.produce("t", small).error_code == 0
        with RawClient(broker.bootstrap_servers) as client:
            large = build_batch([Record(0, -1, None, bytes(11_000))])
            client.produce("t", large, answer=False)
            assert client.is_closed_by_broker()


def test_partly_received_requests_share_the_memory_of_queued_max_request_bytes():
    size = 1_000_000
    config = {"socket.request.max.bytes": size, "queued.max.request.bytes": size}
    with Broker(config=config, topics=["t"]) as broker:
        record = Record(0, -1, None, bytes(size - 1_000))
        with RawClient(broker.bootstrap_servers) as alone:
            answer = alone.produce("t", build_batch([record]))
            assert answer.error_code == 0, "one request of nearly the limit fits"
        with (
            RawClient(broker.bootstrap_servers) as first,
            RawClient(broker.bootstrap_servers) as second,
        ):
            for client in (first, second):
                with suppress(Disconnected, ConnectionError):  # closed while it sends
                    client.send(struct.pack(">i", size) + bytes(700_000))
            readable, _, _ = select.select([first.sock, second.sock], [], [], 20)
            (closed,) = [client for client in (first, second) if client.sock in readable]
            assert closed.is_closed_by_broker()


def test_fetch_max_bytes_limits_a_response_that_may_be_larger():
    batch = build_batch([Record(0, -1, None, bytes(1_000))])

    def fetched(config):
        with Broker(config=config, topics=["t"]) as broker:
            with RawClient(broker.bootstrap_servers) as client:
                for _ in range(10):
                    assert client.produce("t", batch).error_code == 0
                # More than the limit can hold, so that a limit ignored here shows as a wait.
                fetch = m.FetchRequest
                partition = fetch.FetchPartition(
                    partition=0, fetch_offset=0, partition_max_bytes=1 << 20
                )
                request = fetch(
                    max_wait_ms=60_000,
                    min_bytes=5 * len(batch),
                    max_bytes=1 << 20,
                    session_epoch=-1,
                    topics=[fetch.FetchTopic(topic="t", partitions=[partition])],
                )
                answer = client.ask(ApiKey.FETCH, 11, request)
            return len(answer.responses[0].partitions[0].records)

    assert fetched({}) == 10 * len(batch)
    assert fetched({"fetch.max.bytes": 3 * len(batch)}) == 3 * len(batch)


def test_the_number_of_fetch_sessions_is_limited():
    fetch = m.FetchRequest
    with Broker(config={"max.incremental.fetch.session.cache.slots": 1}, topics=["t"]) as broker:
        sessions = []
        with ExitStack() as clients:
            for _ in range(2):
                client = clients.enter_context(RawClient(broker.bootstrap_servers))
                partition = fetch.FetchPartition(partition=0, partition_max_bytes=1 << 20)
                request = fetch(
                    max_bytes=1 << 20,
                    session_epoch=0,
                    topics=[fetch.FetchTopic(topic="t", partitions=[partition])],
                )
                sessions.append(client.ask(ApiKey.FETCH, 11, request).session_id)
        assert sessions[0] != 0 and sessions[1] == 0


def test_a_description_of_partitions_has_at_most_as_many_as_its_limit():
    request = m.DescribeTopicPartitionsRequest
    config = {"max.request.partition.size.limit": 2}
    asked = request(
        topics=[request.TopicRequest(name="t")], response_partition_limit=100, cursor=None
    )
    with (
        Broker(config=config, topics={"t": 5}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        answer = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
    assert [len(topic.partitions) for topic in answer.topics] == [2]
    assert answer.next_cursor.partition_index == 2


# --- topics and records


def test_topics_are_created_on_demand_and_deleted_only_where_settings_allow_it():
    def metadata_of(client, topic):
        request = m.MetadataRequest
        named = request.MetadataRequestTopic(name=topic)
        asked = request(topics=[named], allow_auto_topic_creation=True)
        return client.ask(ApiKey.METADATA, 9, asked).topics[0]

    def delete(client, topic):
        request = m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        return client.ask(ApiKey.DELETE_TOPICS, 5, request).responses[0].error_code

    config = {"num.partitions": 3, "delete.topic.enable": False}
    with Broker(config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        while metadata_of(client, "new").error_code:
            pass
        assert len(metadata_of(client, "new").partitions) == 3
        assert delete(client, "new") == 73, "TOPIC_DELETION_DISABLED"
    config = {"auto.create.topics.enable": False}
    with (
        Broker(config=config, topics=["t"]) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        assert metadata_of(client, "new").error_code == 3, "UNKNOWN_TOPIC_OR_PARTITION"
        assert delete(client, "t") == 0


def test_a_topic_gets_the_default_replication_factor():
    request = m.CreateTopicsRequest
    topic = request.CreatableTopic(name="t", num_partitions=1, replication_factor=-1)
    config = {"default.replication.factor": 2}
    with Broker(config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, request(topics=[topic], timeout_ms=10_000))
    assert answer.topics[0].error_code == 38, "INVALID_REPLICATION_FACTOR: there is one broker"


def test_records_are_validated_only_where_the_setting_asks_for_it():
    # The offset deltas are wrong, which only unpacking shows.
    records = [Record(0, -1, b"k", b"v"), Record(0, -1, b"k", b"v")]
    batch = build_batch(records, last_offset_delta=1)
    assert [record.offset for record in iter_records(batch)] == [0, 0]
    for validates, code in ((False, 0), (True, 87)):
        config = {"headrace.validate.records": validates}
        with (
            Broker(config=config, topics=["t"]) as broker,
            RawClient(broker.bootstrap_servers) as client,
        ):
            assert client.produce("t", batch).error_code == code
