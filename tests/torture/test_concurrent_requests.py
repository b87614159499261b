"""Concurrent requests of all kinds of clients that reach the broker in one loop iteration.

The broker process is paused while all clients send, so that it finds all requests at once when it
resumes: requests that are answered at once, and requests that wait for a coordinator, a thread or a
child process, cut anywhere, several in a row. Every acknowledged record must be at the offset that
its producer got, byte for byte, and no other record may exist. There are few sizes, so that
requests of different clients differ only in their content.
"""

import os
import random
import selectors
import signal
import socket
import time
from collections import Counter, deque
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.model.errors import ErrorCode
from headrace.records.batch import crc_holds, headers
from headrace.records.record import Record, build_batch, iter_records
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey, response_class
from headrace.wire.session import Session
from tests.fakes.transactional_client import TransactionalClient

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

BURSTS_PER_ROUND = 100
PARTITIONS = 2
TOPICS = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "squeezed": {"compression.type": "gzip"},
}
SIZES = [20] * 6 + [300] * 6 + [9_000] * 3 + [70_000, 400_000]
CODECS = [0, 0, 0, 1, 2, 3, 4]
FIRST_WITH_TOPIC_IDS = 13
LIMIT_S = 60


class Connection:
    """Sends without waiting, and passes each response to the callback of its request."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.session = Session("round")
        self.unsent = bytearray()
        self.waiting = deque()

    def post(self, version, request, on_answer):
        """``on_answer`` is None if there is no response (acks=0)."""
        self.unsent += self.session.encode(request, api_version=version)
        if on_answer is not None:
            self.waiting.append(on_answer)

    def push(self, size=None):
        """Send as much as the socket takes, at most ``size`` bytes."""
        with suppress(BlockingIOError):
            del self.unsent[: self.socket.send(self.unsent[:size])]

    def pull(self):
        data = self.socket.recv(1 << 20)
        assert data, "the broker closed a connection"
        for frame in self.session.feed(data):
            response = self.session.response(frame)
            self.waiting.popleft()(response.decode(response_class(response.api_key)))


class World:
    """Shared by the clients: the random numbers, the topics, and what was acknowledged."""

    def __init__(self, address, seed):
        self.address = address
        self.dice = random.Random(seed)
        self.told = {}  # (topic, partition, offset): value
        self.unheard = []  # values sent with acks=0
        self.aborted = set()
        self.count = 0
        with TransactionalClient(address) as client:
            self.ids = {topic.name: topic.topic_id for topic in client.metadata(*TOPICS).topics}

    def values(self, who):
        size, count = self.dice.choice(SIZES), self.dice.choice([1, 1, 2])
        found = []
        for _ in range(count):
            self.count += 1
            found.append(b"%03d-%08d-" % (who, self.count) + b"%d" % (who % 10) * (size - 13))
        return found

    def place(self):
        return self.dice.choice(list(TOPICS)), self.dice.randrange(PARTITIONS)

    def batch(self, values, **how):
        now = int(time.time() * 1000)
        records = [Record(n, now, b"key", value) for n, value in enumerate(values)]
        return build_batch(records, codec=self.dice.choice(CODECS), **how)

    def produce(self, version, parts, acks=-1, transactional_id=None):
        request = m.ProduceRequest
        by_id = version >= FIRST_WITH_TOPIC_IDS
        topics = [
            request.TopicProduceData(
                name="" if by_id else topic,
                topic_id=self.ids[topic] if by_id else bytes(16),
                partition_data=[request.PartitionProduceData(index=partition, records=batch)],
            )
            for (topic, partition), batch in parts.items()
        ]
        return request(
            transactional_id=transactional_id, acks=acks, timeout_ms=30_000, topic_data=topics
        )

    def note(self, parts, answer):
        """Record the offsets of acknowledged values; return the codes of refused ones."""
        codes = []
        for ((topic, partition), values), told in zip(parts.items(), answer.responses, strict=True):
            (one,) = told.partition_responses
            if one.error_code:
                codes.append(ErrorCode(one.error_code))
            for number, value in enumerate(values):
                self.told[topic, partition, one.base_offset + number] = value
        return codes


class Plain:
    """A producer without an ID: several requests in a row, with one batch or several."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.connection = Connection(world.address)

    def act(self):
        dice = self.world.dice
        for _ in range(dice.choice([1, 1, 1, 2, 4])):
            places = {self.world.place() for _ in range(dice.choice([1, 1, 3]))}
            parts = {place: self.world.values(self.number) for place in sorted(places)}
            batches = {place: self.world.batch(values) for place, values in parts.items()}
            version, acks = dice.choice([7, 9, 12, 13]), dice.choice([-1, -1, 1, 0])
            request = self.world.produce(version, batches, acks)

            def on_answer(answer, parts=parts):
                assert self.world.note(parts, answer) == []

            if acks == 0:
                self.world.unheard += [value for values in parts.values() for value in values]
                on_answer = None
            self.connection.post(version, request, on_answer)


class Idempotent:
    """An idempotent producer of one partition. Its requests have one form, as of real clients."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.connection = Connection(world.address)
        self.place = world.place()
        self.sequence = 0
        with TransactionalClient(world.address) as client:
            _, *self.producer = client.init(None)

    def act(self):
        for _ in range(self.world.dice.choice([1, 3, 5])):
            parts = {self.place: self.world.values(self.number)}
            (values,) = parts.values()
            batch = self.world.batch(
                values,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                base_sequence=self.sequence,
            )
            self.sequence += len(values)

            def on_answer(answer, parts=parts):
                assert self.world.note(parts, answer) == []

            request = self.world.produce(9, {self.place: batch})
            self.connection.post(9, request, on_answer)


class Transactional:
    """Short transactions (KIP-890), committed or aborted."""

    RETRIED = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS)

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.connection = Connection(world.address)
        self.name = f"round-{number}"
        self.parts = {}  # of the batch to send, or to send again
        self.written = []  # in the current transaction
        self.sequences = Counter()
        with TransactionalClient(world.address) as client:
            self.producer = client.start(self.name)

    def act(self):
        if self.written and self.world.dice.random() < 0.5:
            self.end(commit=self.world.dice.random() < 0.7)
            return
        places = {self.world.place() for _ in range(self.world.dice.choice([1, 2]))}
        self.parts = self.parts or {place: self.world.values(self.number) for place in places}
        batches = {
            place: self.world.batch(
                values,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                base_sequence=self.sequences[place],
                transactional=True,
            )
            for place, values in self.parts.items()
        }
        request = self.world.produce(12, batches, transactional_id=self.name)
        self.connection.post(12, request, self._written)

    def _written(self, answer):
        codes = self.world.note(self.parts, answer)
        if codes:
            # The coordinator still ends the last transaction: all batches are refused, or none.
            assert len(codes) == len(self.parts) and set(codes) <= set(self.RETRIED), codes
            return
        for place, values in self.parts.items():
            self.sequences[place] += len(values)
            self.written += values
        self.parts = {}

    def end(self, *, commit):
        request = m.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=commit,
        )
        self.connection.post(5, request, self._ended)
        if not commit:
            self.world.aborted.update(self.written)
        self.written = []

    def _ended(self, answer):
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.producer = answer.producer_id, answer.producer_epoch
        self.sequences.clear()


class Committer:
    """A consumer outside of a group that commits offsets, each with different metadata."""

    def __init__(self, world, number):
        self.world, self.group = world, f"round-{number}"
        self.connection = Connection(world.address)
        self.offset = 0
        with TransactionalClient(world.address) as client:
            client.find(self.group, kind=0)

    def act(self):
        self.offset += 1
        request = m.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=self.offset,
            committed_metadata=self._words(),
        )
        topic = request.OffsetCommitRequestTopic(name="plain", partitions=[partition])
        asked = request(
            group_id=self.group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        self.connection.post(self.world.dice.choice([7, 8, 9]), asked, _taken)

    def _words(self):
        return f"{self.group} {self.offset:08d}"

    def check(self):
        # Not with librdkafka: it returns the metadata with the bytes after it in its memory.
        request = m.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopics(name="plain", partition_indexes=[0])
        group = request.OffsetFetchRequestGroup(group_id=self.group, topics=[topic])
        with TransactionalClient(self.world.address) as client:
            answer = client.ask(ApiKey.OFFSET_FETCH, 8, request(groups=[group]))
        (found,) = answer.groups[0].topics[0].partitions
        assert (found.committed_offset, found.metadata) == (self.offset, self._words())


class Reader:
    """Reads one partition, and waits a moment at its end."""

    def __init__(self, world, number):
        self.world = world
        self.connection = Connection(world.address)
        self.topic, self.partition = world.place()
        self.seen = {}  # (topic, partition, offset): value
        self.offset = 0

    def act(self):
        request = m.FetchRequest
        partition = request.FetchPartition(
            partition=self.partition, fetch_offset=self.offset, partition_max_bytes=1 << 18
        )
        asked = request(
            max_wait_ms=20,
            min_bytes=1,
            max_bytes=1 << 18,
            session_epoch=-1,
            topics=[request.FetchTopic(topic=self.topic, partitions=[partition])],
        )
        self.connection.post(self.world.dice.choice([4, 11, 12]), asked, self._read)

    def _read(self, answer):
        (partition,) = answer.responses[0].partitions
        assert partition.error_code == 0
        place = self.topic, self.partition
        for batch, header in whole_batches(partition.records):
            self.seen.update(values_in(batch, header, place))
            self.offset = header.last_offset + 1


def _taken(answer):
    assert answer.topics[0].partitions[0].error_code == 0


def settle(connections):
    """Wait until everything is sent and answered."""
    give_up_at = time.monotonic() + LIMIT_S
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while any(each.unsent or each.waiting for each in connections):
            assert time.monotonic() < give_up_at, "the broker does not answer"
            for each in connections:
                if each.unsent:
                    each.push()
            for key, _ in selector.select(0.01):
                key.data.pull()


def burst(world, process, clients):
    """Clients send while the broker is paused; some send only a part, and the rest later."""
    os.kill(process.process_id, signal.SIGSTOP)
    try:
        for client in world.dice.sample(clients, world.dice.randint(2, len(clients))):
            client.act()
            is_cut = world.dice.random() < 0.2
            client.connection.push(world.dice.randint(1, 400) if is_cut else None)
    finally:
        os.kill(process.process_id, signal.SIGCONT)
    settle([client.connection for client in clients])


def finish(clients):
    """Commit the open transactions."""
    for client in clients:
        if isinstance(client, Transactional) and client.written:
            client.end(commit=True)
    settle([client.connection for client in clients])


def whole_batches(data):
    for position, header in headers(data or b""):
        batch = memoryview(data)[position : position + header.size]
        assert crc_holds(batch, header)
        yield batch, header


def values_in(batch, header, place):
    """Values by partition and offset; none for a marker."""
    if header.is_control:
        return {}
    return {(*place, record.offset): record.value for record in iter_records(batch)}


def read_log(address):
    """Every record by partition and offset, also of aborted transactions."""
    found = {}
    with TransactionalClient(address) as client:
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                offset = 0
                while data := client.fetch(topic, offset, partition=partition).records:
                    for batch, header in whole_batches(data):
                        found.update(values_in(batch, header, (topic, partition)))
                        offset = header.last_offset + 1
    return found


def read_committed(address):
    """Every value that a stock consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, p, 0) for topic in TOPICS for p in range(PARTITIONS)]
    consumer.assign(places)
    values, ended = [], 0
    give_up_at = time.monotonic() + LIMIT_S
    while ended < len(places):
        assert time.monotonic() < give_up_at, "not all partitions can be read to their end"
        for message in consumer.consume(1_000, timeout=0.2):
            if message.error() is None:
                values.append(message.value())
            else:
                ended += 1
    consumer.close()
    return values


def test_no_client_gets_the_bytes_of_another(tmp_path, torture_rounds):
    with Broker(process=True, data=tmp_path) as broker:
        address = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        wanted = [NewTopic(name, PARTITIONS, 1, config=how) for name, how in TOPICS.items()]
        for made in admin.create_topics(wanted).values():
            made.result(LIMIT_S)
        world = World(address, seed=5)
        kinds = (
            [Plain] * 6 + [Idempotent] * 5 + [Transactional] * 5 + [Committer] * 2 + [Reader] * 4
        )
        clients = [kind(world, number) for number, kind in enumerate(kinds)]
        process = broker.runner.child
        for _ in range(torture_rounds * BURSTS_PER_ROUND):
            burst(world, process, clients)
        finish(clients)
        found = read_log(address)
        committed = read_committed(address)
        for client in clients:
            if isinstance(client, Committer):
                client.check()
            if isinstance(client, Reader):
                assert client.seen.items() <= found.items()
            client.connection.socket.close()

    wrong = {place: value[:12] for place, value in world.told.items() if found[place] != value}
    assert wrong == {}
    everything = Counter(found.values())
    assert everything == Counter([*world.told.values(), *world.unheard])
    assert max(everything.values()) == 1
    assert set(committed) == set(everything) - world.aborted
    assert len(committed) == len(set(committed))
    print(f"{torture_rounds * BURSTS_PER_ROUND} bursts, {len(everything)} records, all in place")
