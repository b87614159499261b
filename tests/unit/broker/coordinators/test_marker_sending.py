"""Markers reach the leaders of their partitions, wherever these are."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from headrace.broker.coordinators.marker_sending import MarkerSender
from headrace.broker.coordinators.markers import Marker
from headrace.broker.metadata.cache import MetadataCache
from headrace.broker.peers import Peers
from headrace.broker.tasks import BackgroundTasks
from headrace.coordination import paths, values
from headrace.coordination.topic_store import TopicStore
from headrace.model.cluster_metadata import NO_LEADER, ClusterMetadata, TopicState
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from headrace.wire import messages as m
from headrace.world.network import dial
from tests.fakes.network_peers import until
from tests.fakes.partition_states import a_state
from tests.fakes.scripted_broker import scripted_broker
from tests.fakes.standin import in_loop
from tests.fakes.trees import memory_tree

NONE = ErrorCode.NONE
MARKER = Marker(7, 3, 11, commit=True, transaction_version=0)


def t(partition):
    return TopicPartition("t", partition)


class LedHere:
    """In place of the replica manager of broker 1: the partitions that it leads."""

    broker_id = BrokerId(1)

    def __init__(self):
        self.led = set()

    def get(self, topic, partition):
        return self if partition in self.led else None

    @property
    def leadership(self):
        return object()


class RecordingWriter:
    """In place of the local log."""

    def __init__(self):
        self.written = []

    def write(self, marker, partitions, report):
        self.written.append((marker, list(partitions)))
        report(dict.fromkeys(partitions, NONE))


class Cluster:
    """Broker 1, which sends, and its metadata; ``leaders`` are those of the topic's partitions."""

    def __init__(self, *leaders):
        self.failures, self.reports = [], []
        loop = asyncio.get_running_loop()
        self.tasks = BackgroundTasks(loop, self.failures.append)
        self.metadata = MetadataCache(loop, self.failures.append)
        self.here, self.writer = LedHere(), RecordingWriter()
        self.brokers = {}
        peers = Peers(lambda broker_id: self.brokers.get(broker_id), "PLAINTEXT", dial)
        self.tree = memory_tree().open_session()
        self.sender = MarkerSender(
            self.writer, self.here, self.metadata, TopicStore(self.tree), peers, self.tasks
        )
        self.lead(*leaders)

    def lead(self, *leaders):
        states = tuple(
            a_state(leader=BrokerId(leader))._replace(partition=number)
            for number, leader in enumerate(leaders)
        )
        topic = TopicState("t", NO_TOPIC_ID, states, internal=False)
        self.metadata.current = ClusterMetadata("c").with_topics([topic])
        self.here.led = {number for number, leader in enumerate(leaders) if leader == 1}
        self.sender.leaders_changed()

    def send(self, *partitions, marker=MARKER):
        self.sender.send(marker, [t(number) for number in partitions], self.reports.append)

    def results(self):
        """The code of each partition; each has been reported once."""
        reported = [partition for codes in self.reports for partition in codes]
        assert len(reported) == len(set(reported))
        return {tp.partition: code for codes in self.reports for tp, code in codes.items()}


def written(request, code=NONE):
    response = m.WriteTxnMarkersResponse
    return response(
        markers=[
            response.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    response.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            response.WritableTxnMarkerPartitionResult(
                                partition_index=partition, error_code=code
                            )
                            for partition in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in reversed(request.markers)  # as Kafka: by producer, in any order
        ]
    )


@asynccontextmanager
async def cluster_of(*leaders, answer=written):
    """Broker 1 and a scripted broker with id 2."""
    cluster = Cluster(*leaders)
    async with scripted_broker(answer) as other:
        cluster.brokers[BrokerId(2)] = other.entry(2)
        yield cluster, other
        await cluster.sender.close()
        await until(lambda: not len(cluster.tasks))
    assert cluster.failures == []


def asked(other):
    """The partitions by producer id of each request."""
    return [
        {one.producer_id: one.topics[0].partition_indexes for one in received.request.markers}
        for received in other.received
    ]


@in_loop
async def test_each_leader_gets_its_own_partitions():
    async with cluster_of(1, 2, 1, 2) as (cluster, other):
        cluster.send(0, 1, 2, 3)
        assert cluster.writer.written == [(MARKER, [t(0), t(2)])]
        assert cluster.results() == {0: NONE, 2: NONE}
        await until(lambda: len(cluster.reports) == 2)
        assert cluster.results() == dict.fromkeys(range(4), NONE)
        (received,) = other.received
        assert (received.client_id, received.api_version) == ("broker-1-txn-marker-sender", 1)
        (marker,) = received.request.markers
        assert (marker.producer_id, marker.producer_epoch) == (7, 3)
        assert (marker.coordinator_epoch, marker.transaction_result) == (11, True)
        assert asked(other) == [{7: [1, 3]}]


@in_loop
async def test_a_marker_of_the_second_generation_carries_its_transaction_version():
    async with cluster_of(2) as (cluster, other):
        cluster.send(0, marker=MARKER._replace(transaction_version=2))
        await until(lambda: cluster.reports)
        (received,) = other.received
        assert received.api_version == 2
        assert received.request.markers[0].transaction_version == 2


@in_loop
async def test_markers_that_queue_up_share_a_request_and_none_is_sent_twice():
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return written(request)

    async with cluster_of(2, 2, 2, answer=answer) as (cluster, other):
        cluster.send(0)
        await until(lambda: other.received)
        cluster.send(0, 1)  # the coordinator retries; 0 is in flight
        for producer_id in (8, 9):
            cluster.send(2, marker=MARKER._replace(producer_id=producer_id))
        gate.set()
        await until(lambda: len(cluster.reports) == 4)
        assert asked(other) == [{7: [0]}, {7: [1], 8: [2], 9: [2]}]


@in_loop
async def test_a_partition_without_a_leader_waits_and_a_deleted_one_needs_no_marker():
    async with cluster_of(NO_LEADER, 2) as (cluster, other):
        cluster.here.led.clear()
        cluster.send(0, 5)
        await until(lambda: len(cluster.reports) == 2)
        assert cluster.results() == {0: ErrorCode.LEADER_NOT_AVAILABLE, 5: NONE}
        assert other.received == []


@in_loop
async def test_a_partition_that_this_broker_has_not_heard_of_is_tried_again():
    async with cluster_of(2) as (cluster, other):
        states = tuple(a_state()._replace(partition=number) for number in range(3))
        topic = TopicState("t", TopicId(b"t" * 16), states, internal=False)
        for path in ("/brokers", "/brokers/topics"):
            await cluster.tree.create(path)
        await cluster.tree.create(paths.topic("t"), values.encode_topic(topic))
        cluster.send(2, 3)  # the metadata has one partition
        await until(lambda: len(cluster.reports) == 2)
        assert cluster.results() == {2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 3: NONE}
        assert other.received == []


@in_loop
async def test_without_the_tree_no_partition_counts_as_deleted():
    async with cluster_of(2) as (cluster, _):
        await cluster.tree.close()
        cluster.send(5)
        await until(lambda: cluster.reports)
        assert cluster.results() == {5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@in_loop
async def test_an_unreachable_leader_is_an_error_of_its_partitions_only(caplog):
    async with cluster_of(2, 3) as (cluster, _):
        cluster.send(0, 1)
        await until(lambda: len(cluster.reports) == 2)
        assert cluster.results() == {0: NONE, 1: ErrorCode.NETWORK_EXCEPTION}
        assert "Could not send transaction markers to broker 3" in caplog.text


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
@in_loop
async def test_the_answer_of_the_leader_is_reported(code):
    async with cluster_of(2, answer=lambda request: written(request, code)) as (cluster, _):
        cluster.send(0)
        await until(lambda: cluster.reports)
        assert cluster.results() == {0: code}


@in_loop
async def test_a_partition_without_an_answer_is_tried_again():
    async with cluster_of(2, answer=lambda request: m.WriteTxnMarkersResponse()) as (cluster, _):
        cluster.send(0)
        await until(lambda: cluster.reports)
        assert cluster.results() == {0: ErrorCode.UNKNOWN_SERVER_ERROR}


@in_loop
async def test_a_leader_that_leads_no_longer_is_not_waited_for():
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return written(request)

    async with cluster_of(2, 2, answer=answer) as (cluster, other):
        cluster.send(0, 1)
        await until(lambda: other.received)
        cluster.lead(1, 2)
        assert cluster.results() == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        cluster.reports.clear()
        cluster.send(0, 1)
        assert cluster.writer.written == [(MARKER, [t(0)])]
        gate.set()
        await until(lambda: len(cluster.reports) == 2)
        assert cluster.results() == {0: NONE, 1: NONE}
        assert asked(other) == [{7: [0, 1]}]
