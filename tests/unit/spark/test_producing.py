"""Sending batches to a cluster of two brokers with given responses."""

from collections import deque
from types import SimpleNamespace

import pytest

from headrace.arrow.encoding import EncodedBatch
from headrace.arrow.errors import BadRow
from headrace.client.errors import Refused
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.batch import read_header
from headrace.records.record import Record, build_batch
from headrace.spark.failures import PipelineError
from headrace.spark.producing import BatchSender, Identity
from headrace.wire import messages as m

DATA = build_batch([Record(0, 1, b"k", b"v")])
GONE = Refused(ErrorCode.BROKER_NOT_AVAILABLE, "unknown broker 0")


class Brokers:
    """Two brokers and the connections to them. Broker 0 leads the even partitions.

    ``answers`` are the next responses, for all partitions of a request: an error code, or an
    exception to raise instead of a response. Later requests succeed.
    """

    settings = SimpleNamespace(retry_backoff_ms=0, request_timeout_ms=1_000, api_timeout_ms=1_000)

    def __init__(self, *answers):
        self._answers = deque(answers)
        self._next_id = 8
        self._waiting = deque()
        self.stored = []  # producer ID, sequence and place
        self.dropped = []

    def leader(self, topic, partition):
        return partition % 2

    def connection(self, broker_id):
        return self

    def drop(self, broker_id):
        self.dropped.append(broker_id)

    def forget(self):
        pass

    def persistently(self, attempt, what):
        return attempt()

    def ask_any(self, request, kind):
        self._next_id += 1
        return m.InitProducerIdResponse(producer_id=self._next_id, producer_epoch=0)

    def send(self, request, *, version_max):
        self._waiting.append(request)

    def receive(self, kind):
        request = self._waiting.popleft()
        answer = self._answers.popleft() if self._answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        (topic,) = request.topic_data
        for data in topic.partition_data:
            header = read_header(data.records)
            if answer is ErrorCode.NONE:
                self.stored.append((header.producer_id, header.base_sequence, data.index))
        of_partition = kind.PartitionProduceResponse
        partitions = [of_partition(index=d.index, error_code=answer) for d in topic.partition_data]
        responses = [kind.TopicProduceResponse(name="t", partition_responses=partitions)]
        return kind(responses=responses)


def batches(*partitions):
    return [EncodedBatch(TopicPartition("t", partition), 1, DATA) for partition in partitions]


def test_a_forgotten_producer_id_is_replaced_once_for_all_partitions():
    brokers = Brokers(ErrorCode.UNKNOWN_PRODUCER_ID)
    sender = BatchSender(brokers, Identity(5, 0))
    sender.send(batches(0, 2, 4, 6, 8, 10))
    sender.flush()
    assert brokers.stored == [(9, 0, partition) for partition in (0, 2, 4, 6, 8, 10)]


def test_a_producer_id_that_is_forgotten_repeatedly_fails_the_write():
    sender = BatchSender(Brokers(*[ErrorCode.UNKNOWN_PRODUCER_ID] * 4), Identity(5, 0))
    with pytest.raises(PipelineError, match="UNKNOWN_PRODUCER_ID"):
        sender.send(batches(0))
        sender.flush()


def test_a_batch_is_sent_again_if_its_broker_leaves_before_it_responds():
    brokers = Brokers(GONE)
    sender = BatchSender(brokers, Identity(5, 0))
    sender.send(batches(0))
    sender.flush()
    assert brokers.stored == [(5, 0, 0)], "under the same number, in case it was stored"


def test_a_batch_is_not_sent_to_a_new_leader_before_the_old_leader_responds():
    class Moving(Brokers):
        def leader(self, topic, partition):
            return 1 if self._waiting else 0  # it moves as soon as a request is in flight

    brokers = Moving()
    sender = BatchSender(brokers, Identity(5, 0))
    sender.send(batches(0, 0))
    sender.flush()
    assert brokers.stored == [(5, 0, 0), (5, 1, 0)], "two answers for one batch hid the other one"


def test_a_failed_sender_leaves_no_response_on_its_connection():
    brokers = Brokers(ErrorCode.INVALID_RECORD)
    with pytest.raises(PipelineError), BatchSender(brokers, Identity(5, 0)) as sender:
        sender.send(batches(0, 1))
        sender.flush()
    assert brokers.dropped == [1]


def test_a_refused_write_names_the_partition_and_what_to_change():
    sender = BatchSender(Brokers(ErrorCode.TOPIC_AUTHORIZATION_FAILED), Identity(5, 0))
    with pytest.raises(PipelineError, match=r"cannot write to t-0 .*WRITE for writing"):
        sender.send(batches(0))
        sender.flush()


# The second of three records is the large one.
LARGE = [Record(n, 1, key, b"v") for n, key in enumerate((b"a", b"k" * 50, None))]


class Narrow(Brokers):
    """Refuses batches that are larger than one small record."""

    def receive(self, kind):
        size_max = len(build_batch(LARGE[:1]))
        data = self._waiting[0].topic_data[0].partition_data[0].records
        if len(data) > size_max:
            self._answers.append(ErrorCode.MESSAGE_TOO_LARGE)
        return super().receive(kind)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ((10, 12), "row 11 of its task with the key b'kkk"),
        ((10, 19), "a row of its task's 10 to 19 with the key b'kkk"),
        (None, "a row with the key b'kkk"),
    ],
)
def test_a_row_that_is_too_large_for_the_topic_is_named(rows, told):
    sender = BatchSender(Narrow(), Identity(5, 0))
    with pytest.raises(BadRow, match=rf"^{told}.*too large for t-0: raise the topic's max"):
        sender.send([EncodedBatch(TopicPartition("t", 0), 3, build_batch(LARGE), rows)])
        sender.flush()


def test_a_row_without_a_key_that_is_too_large_is_named_too():
    sender = BatchSender(Brokers(ErrorCode.MESSAGE_TOO_LARGE), Identity(5, 0))
    with pytest.raises(BadRow, match="^row 7 of its task without a key, "):
        sender.send([EncodedBatch(TopicPartition("t", 0), 1, build_batch(LARGE[2:]), (7, 7))])
        sender.flush()
