"""Stock clients (librdkafka) that fill a ``History``, each on a thread of its own.

``StockClients`` runs producers, readers and group members while a test causes faults. ``finish``
waits until everything has converged and writes down what the partitions and replicas hold.
"""

import itertools
import json
import threading
import time
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.model.ids import TopicPartition as Place
from headrace.records.batch import headers
from headrace.records.record import iter_records
from tests.fakes.waiting import wait_until
from tests.history.history import Entry, Outcome

CONVERGE_LIMIT_S = 45
_PAUSE_S = 0.01  # of a producer between two bursts
_BURST = 5
_QUICK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 3_000,  # a paused broker accepts requests, and answers none
    "log_level": 0,
}
_QUICK_READS = _QUICK | {"fetch.wait.max.ms": 50}  # a closed consumer waits for its fetch
_IN_FLIGHT = 200  # records of a producer
_CLASSIC = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}
_KEEP_TRYING_MS = 120_000
STATISTICS_MS = 1_000
_LOST_AFTER = 5  # statistics in a row that show no broker
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_generations = itertools.count()


class _Client:
    """A client on a thread. ``close`` ends it and raises what ended it early."""

    replaces_lost = False  # see StockClients

    def __init__(self, history, name):
        self.history = history
        self.name = name
        self.over = threading.Event()
        self.replaced_count = 0
        self.statistics = {}  # the last that librdkafka told
        self._brokerless = 0  # statistics in a row that show no broker
        self._failure = None
        self.thread = threading.Thread(target=self._run, name=name)

    def start(self):
        self.thread.start()

    def close(self):
        self.over.set()
        self.thread.join()
        self.check()

    def check(self):
        """Raise what ended it early."""
        if self._failure is not None:
            raise self._failure

    @property
    def instance(self):
        """The name of its librdkafka client in the history: its successor has another one."""
        return f"{self.name}.{self.replaced_count}" if self.replaced_count else self.name

    @property
    def is_lost(self):
        """Whether librdkafka has dropped all its brokers, and is to be replaced."""
        return self.replaces_lost and self._brokerless >= _LOST_AFTER

    def _replace_if_lost(self):
        """What a supervisor does to a process that no longer works: start another one."""
        if self.is_lost:
            self.replaced_count += 1
            self.replace()
            self._brokerless = 0

    def _telling(self):
        """The settings for statistics."""
        return {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self.told_statistics}

    def told_statistics(self, statistics):
        self.statistics = json.loads(statistics)
        brokers = self.statistics.get("brokers", {}).values()
        knows_broker = any(broker["nodeid"] >= 0 for broker in brokers)  # others: bootstrap only
        self._brokerless = 0 if knows_broker else self._brokerless + 1

    def _run(self):
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001 - raised by close
            self._failure = failure


def _close(consumer):
    """Close a consumer, or leave it: librdkafka sometimes waits here with no request in flight."""
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(CONVERGE_LIMIT_S)


class StockProducer(_Client):
    """Sends numbered records to all its places, with acks=all, and repeats until they are in."""

    def __init__(self, history, bootstrap, name, places, *, idempotent=True, compression="none"):
        super().__init__(history, name)
        self.acknowledged_count = 0
        self.places = places
        self._idempotent = idempotent
        self._settings = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "acks": "all",
            "enable.idempotence": idempotent,
            "max.in.flight.requests.per.connection": 5,
            "compression.type": compression,
            "message.timeout.ms": _KEEP_TRYING_MS,
            "retries": 1_000_000,
            "retry.backoff.ms": 20,
            "request.timeout.ms": 2_000,
            "queue.buffering.max.messages": _IN_FLIGHT,
            "linger.ms": 2,
            **self._telling(),
            **_QUICK,
        }
        self._producer = Producer(self._settings)

    def work(self):
        for number in itertools.count():
            if self.over.is_set():
                break
            self._replace_if_lost()
            self._send(number)
            if number % _BURST == 0:
                self._producer.poll(0)
                self.over.wait(_PAUSE_S)
        self._flush()

    def _flush(self):
        give_up_at = time.monotonic() + CONVERGE_LIMIT_S
        while left := self._producer.flush(1):
            self._replace_if_lost()
            if time.monotonic() >= give_up_at:
                raise AssertionError(f"{self.name}: {left} records were not acknowledged")

    def replace(self):
        """Leave the outcome of queued records unknown: the log may hold some of them."""
        self._producer.purge()
        self._producer.flush(1)
        self._producer = Producer(self._settings)

    def describe(self):
        """Where it waits, for an error message."""
        waiting = [
            f"{sent.value!r} to {sent.place}"
            for sent in self.history.sent
            if sent.outcome is Outcome.UNKNOWN and sent.value.startswith(self.name.encode() + b"-")
        ]
        return (
            f"{self.name}: {len(self._producer)} queued, waits for {waiting[:3]}; librdkafka: "
            f"{_state_of(self.statistics)}"
        )

    def _send(self, number):
        place = self.places[number % len(self.places)]
        value = b"%s-%d" % (self.name.encode(), number)
        # Without idempotence librdkafka repeats a batch behind later ones if the leader changes
        # meanwhile, so such records count as of different producers.
        producer = self.instance if self._idempotent else value.decode()
        sent = self.history.send(producer, place, value, idempotent=self._idempotent)
        while True:
            try:
                self._producer.produce(
                    place.topic,
                    value,
                    partition=place.partition,
                    on_delivery=partial(self.delivered, sent),
                )
                return
            except BufferError:
                self._producer.poll(0.05)
            if self.is_lost:
                return  # the successor begins with the next record

    def delivered(self, sent, error, message):
        if error is not None and error.code() in _PURGED:
            return  # by replace
        if error is not None:
            self.history.expect_nothing_of(f"{self.name}: {sent.value!r} failed with {error}")
            return
        self.acknowledged_count += 1
        # It has no offset if the response to its batch was an error such as REQUEST_TIMED_OUT, and
        # the success of the next batch proves that it is in the log.
        offset = message.offset()
        self.history.acknowledge(sent, -1 if offset is None else offset)


class StockReader(_Client):
    """Reads its places from the start, and asks for the latest offset now and then."""

    def __init__(self, history, bootstrap, name, places):
        super().__init__(history, name)
        self.places = places
        self._readings = {place: history.start_reading(name, place, 0) for place in places}
        self._last_error = None
        self._settings = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": name,
            "auto.offset.reset": "error",  # a leader with a shorter log is an anomaly
            "enable.auto.commit": False,
            "check.crcs": True,
            "retry.backoff.ms": 20,
            **self._telling(),
            **_QUICK_READS,
        }
        self._consumer = Consumer(self._settings)

    def position(self, place):
        return self._readings[place].end

    def wait_for(self, place, end):
        """Wait until everything below ``end`` was read."""

        def has_read():
            self.check()
            return self.position(place) >= end

        try:
            wait_until(has_read, CONVERGE_LIMIT_S)
        except AssertionError:
            raise AssertionError(
                f"{self.name}: {place} read up to {self.position(place)} of {end}, last error "
                f"{self._last_error}; librdkafka: {_state_of(self.statistics)}"
            ) from None

    def work(self):
        try:
            self._assign()
            asking = itertools.cycle(self.places)
            while not self.over.is_set():
                self._replace_if_lost()
                self._read()
                self._ask_latest(next(asking))
        finally:
            _close(self._consumer)

    def _assign(self):
        self._consumer.assign([TopicPartition(*p, self.position(p)) for p in self.places])

    def replace(self):
        """Go on at the position of each reading."""
        self._consumer = Consumer(self._settings)
        self._assign()

    def _read(self):
        for message in self._consumer.consume(1_000, 0.2):
            if (error := message.error()) is not None:
                self._last_error = error
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.history.expect_nothing_of(f"{self.name}: {error}")
                continue
            reading = self._readings[Place(message.topic(), message.partition())]
            self.history.read(reading, [_entry(message)], message.offset() + 1)

    def _ask_latest(self, place):
        partition = TopicPartition(place.topic, place.partition)
        try:
            _, latest = self._consumer.get_watermark_offsets(partition, timeout=1)
        except KafkaException:
            return  # no leader at the moment
        self.history.answer_latest(self.name, place, latest)


class StockMember(_Client):
    """A member of a group that commits what it read, and asks for what was committed."""

    def __init__(self, history, bootstrap, name, group, topics, *, protocol="classic"):
        super().__init__(history, name)
        self.group = group
        self.topics = topics
        self._ownership = None
        self._readings = {}  # by place, since the last assignment
        self._commit_asked = None  # when, and with which ownership
        self._settings = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": protocol,
            "on_commit": self._committed,
            "retry.backoff.ms": 20,
            **self._telling(),
            **(_CLASSIC if protocol == "classic" else {}),
            **_QUICK_READS,
        }
        self._consumer = Consumer(self._settings)

    def work(self):
        self._subscribe()
        try:
            while not self.over.is_set():
                self._replace_if_lost()
                self._read()
                self._commit()
        finally:
            _close(self._consumer)

    def _subscribe(self):
        self._consumer.subscribe(
            self.topics, on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone
        )

    def replace(self):
        """Join as another member; the session of the lost one expires."""
        self._consumer = Consumer(self._settings)  # dropped without close: no callback comes
        self._gone(self._consumer, [])
        self._commit_asked = None
        self._subscribe()

    def _assigned(self, _consumer, partitions):
        places = [Place(each.topic, each.partition) for each in partitions]
        # Stock clients do not show the generation; no two assignments count as one.
        generation = next(_generations)
        self._ownership = self.history.own(
            self.group, self.instance, generation, places, time.monotonic()
        )
        self._readings = {}

    def _gone(self, _consumer, _partitions):
        self._ownership = None
        self._readings = {}

    def _read(self):
        for message in self._consumer.consume(1_000, 0.1):
            if message.error() is not None:
                continue
            place = Place(message.topic(), message.partition())
            if place not in self._readings:
                self._readings[place] = self.history.start_reading(
                    self.instance, place, message.offset()
                )
            self.history.read(self._readings[place], [_entry(message)], message.offset() + 1)

    def _commit(self):
        """Ask for a commit, one at a time.

        Not a synchronous one: librdkafka 2.16 may never return from it if the coordinator moves,
        because it waits for a rebalance that waits for the next poll.
        """
        positions = [
            TopicPartition(place.topic, place.partition, reading.end)
            for place, reading in self._readings.items()
        ]
        if positions and self._ownership is not None and self._commit_asked is None:
            self._commit_asked = (time.monotonic(), self._ownership)
            try:
                self._consumer.commit(offsets=positions, asynchronous=True)
            except KafkaException:
                self._commit_asked = None

    def _committed(self, error, partitions):
        if self._commit_asked is None:
            return
        (asked_at, ownership), self._commit_asked = self._commit_asked, None
        if error is not None or ownership is not self._ownership:
            return  # the coordinator moves, or the group rebalances
        for each in partitions:
            if each.error is None and each.offset >= 0:
                ownership.until = asked_at
                place = Place(each.topic, each.partition)
                self.history.commit(self.group, place, each.offset, time.monotonic())


_COUNTS_OF_PRODUCER = ("leader", "msgq_cnt", "xmit_msgq_cnt", "msgs_inflight", "next_ack_seq")
_COUNTS_OF_CONSUMER = ("leader", "broker", "fetch_state", "next_offset", "ls_offset", "fetchq_cnt")


def _state_of(statistics):
    """What a stalled client waits for, from the statistics of librdkafka."""
    brokers = {
        broker["nodeid"]: (broker["state"], f"{broker['waitresp_cnt']} in flight")
        for broker in statistics.get("brokers", {}).values()
        if broker["nodeid"] >= 0
    }
    is_producer = statistics.get("type") == "producer"
    counts = _COUNTS_OF_PRODUCER if is_producer else _COUNTS_OF_CONSUMER
    partitions = {
        f"{topic['topic']}-{number}": {name: partition.get(name) for name in counts}
        for topic in statistics.get("topics", {}).values()
        for number, partition in topic["partitions"].items()
        if number != "-1"
    }
    return {"idempotence": statistics.get("eos"), "brokers": brokers, "partitions": partitions}


def _entry(message):
    epoch = message.leader_epoch()
    return Entry(message.offset(), message.value(), -1 if epoch is None else epoch, message.key())


class StockClients:
    """All clients of one run.

    With ``replaces_lost``, a client whose librdkafka has dropped all its brokers is replaced after
    some seconds. No correct broker causes that: only tests of brokers with that bug may ask for it.
    """

    def __init__(self, history, cluster, *, replaces_lost=False):
        self.history = history
        self.cluster = cluster
        self.replaces_lost = replaces_lost
        self.producers = []
        self.readers = []
        self.members = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for client in self._all():
            client.over.set()
        for client in self._all():
            if kind is None:
                client.close()
            else:
                client.thread.join(CONVERGE_LIMIT_S)

    def produce(self, name, topic, partitions, **settings):
        places = [Place(topic, number) for number in range(partitions)]
        servers = self.cluster.bootstrap_servers
        self.producers.append(StockProducer(self.history, servers, name, places, **settings))
        self._start(self.producers[-1])
        self.readers.append(StockReader(self.history, servers, f"reader-of-{name}", places))
        self._start(self.readers[-1])

    def join(self, name, group, topics, *, protocol="classic"):
        servers = self.cluster.bootstrap_servers
        member = StockMember(self.history, servers, name, group, topics, protocol=protocol)
        self.members.append(member)
        self._start(member)

    def _start(self, client):
        client.replaces_lost = self.replaces_lost
        client.start()

    def _all(self):
        return [*self.producers, *self.readers, *self.members]

    @property
    def acknowledged_count(self):
        return sum(producer.acknowledged_count for producer in self.producers)

    @property
    def replaced_count(self):
        return sum(client.replaced_count for client in self._all())

    def wait_progress(self, count=50):
        """Wait until each producer has that many more acknowledgements: faults hit a load."""
        goals = [(each, each.acknowledged_count + count) for each in self.producers]

        def has_progressed():
            for client in self._all():
                client.check()
            return all(each.acknowledged_count >= goal for each, goal in goals)

        try:
            wait_until(has_progressed, CONVERGE_LIMIT_S)
        except AssertionError:
            stuck = [each.describe() for each, goal in goals if each.acknowledged_count < goal]
            raise AssertionError(f"{stuck}; {self.history.unexpected[:3]}") from None

    def finish(self):
        """Stop the load, wait until replicas and readers are level, and note the contents."""
        for producer in self.producers:
            producer.close()
        places = [place for reader in self.readers for place in reader.places]
        for topic in sorted({place.topic for place in places}):
            self.cluster.wait_in_sync(topic)
        self._note_contents(places)
        for reader in self.readers:
            for place in reader.places:
                reader.wait_for(place, self.history.contents[place].end)
        self._wait_for_groups()
        for client in [*self.readers, *self.members]:
            client.over.set()
        for client in [*self.readers, *self.members]:
            client.close()
        for place in places:
            self._note_replicas(place)

    def _note_contents(self, places):
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap_servers,
                "group.id": "last-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                **_QUICK_READS,
            }
        )
        entries = {place: [] for place in places}
        try:
            ranges = {}
            for place in places:
                partition = TopicPartition(place.topic, place.partition)
                ranges[place] = consumer.get_watermark_offsets(partition, timeout=30)
            consumer.assign([TopicPartition(*place, ranges[place][0]) for place in places])
            left = {place for place, (start, end) in ranges.items() if start < end}
            give_up_at = time.monotonic() + CONVERGE_LIMIT_S
            while left:
                assert time.monotonic() < give_up_at, f"cannot be read to the end: {left}"
                for message in consumer.consume(10_000, 0.1):
                    if message.error() is None:
                        place = Place(message.topic(), message.partition())
                        entries[place].append(_entry(message))
                        if message.offset() >= ranges[place][1] - 1:
                            left.discard(place)
        finally:
            consumer.close()
        for place, (start, end) in ranges.items():
            self.history.find(place, start, end, entries[place])

    def _wait_for_groups(self):
        """Wait until each group has committed the end of its partitions, and note that."""
        for group, topics in sorted({(m.group, tuple(m.topics)) for m in self.members}):
            places = [place for place in self.history.contents if place.topic in topics]
            ends = {place: self.history.contents[place].end for place in places}
            asking = Consumer(
                {
                    "bootstrap.servers": self.cluster.bootstrap_servers,
                    "group.id": group,
                    **_QUICK,
                }
            )
            try:
                wait_until(
                    lambda a=asking, g=group, e=ends: self._has_committed(a, g, e),
                    CONVERGE_LIMIT_S,
                )
            finally:
                asking.close()

    def _has_committed(self, asking, group, ends):
        asked_at = time.monotonic()
        try:
            answers = asking.committed([TopicPartition(*place) for place in ends], timeout=5)
        except KafkaException:
            return False
        found = {Place(each.topic, each.partition): each.offset for each in answers}
        for place, offset in found.items():
            self.history.answer_committed(group, place, offset, asked_at, time.monotonic())
        return all(found[place] >= end for place, end in ends.items())

    def _note_replicas(self, place):
        end = self.history.contents[place].end
        for broker in self.cluster.brokers:
            directory = broker.data / str(place)
            if directory.exists():
                entries = entries_on_disk(directory)
                self.history.find_replica(place, broker.broker_id, end, entries)


def entries_on_disk(directory):
    """The records of a replica, read from its files."""
    entries = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for at, header in headers(data):
            for record in iter_records(data[at : at + header.size]):
                value = None if header.is_control else record.value
                producer = (header.producer_id, header.producer_epoch)
                entries.append(
                    Entry(record.offset, value, header.leader_epoch, record.key, producer)
                )
    return entries
