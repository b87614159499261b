"""Planning the batches of a stream: lost brokers, and topics that the options no longer name."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructType

from headrace.client.cluster import TopicMetadata
from headrace.client.errors import Disconnected
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.spark import stream
from headrace.spark.cluster import NO_TOPIC_ID, Cluster
from headrace.spark.failures import DataLost
from headrace.spark.offsets import Range
from headrace.spark.options import parse_source
from headrace.spark.stream import StreamReader
from headrace.spark.stream_offset import StreamOffset

OPTIONS = parse_source(
    {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "subscribe": "t",
        "kafka.retry.backoff.ms": "1",
    },
    streaming=True,
)


class Restarting(Cluster):
    """A cluster of one topic whose only broker closes the connection at the first request."""

    def __init__(self):
        super().__init__(OPTIONS.client)
        self.asked = 0

    def topics(self, names=None, *, create=False):
        self.asked += 1
        if self.asked == 1:
            raise Disconnected("it closed the connection")
        return {"t": TopicMetadata(NO_TOPIC_ID, {0: 1, 1: 1}, ErrorCode.NONE)}

    def list_offsets(self, wanted, *, read_committed, patient=True):
        return dict.fromkeys(wanted, 0)

    def group_coordinator(self, group):
        raise Disconnected("there is no coordinator")


@pytest.fixture
def cluster(monkeypatch):
    made = Restarting()
    monkeypatch.setattr(stream, "shared_cluster", lambda settings: made)
    return made


def test_planning_new_partitions_survives_a_broker_restart(cluster):
    reader = StreamReader(OPTIONS, StructType().add("value", BinaryType()))
    old, new = TopicPartition("t", 0), TopicPartition("t", 1)

    planned = reader.partitions(
        StreamOffset({old: 5}).to_json(), StreamOffset({old: 7, new: 3}).to_json()
    )

    assert sorted(range_ for part in planned for range_ in part.ranges) == [
        Range(old, 5, 7),
        Range(new, 0, 3),
    ]
    assert cluster.asked == 2


def test_a_topic_that_the_options_no_longer_name_is_not_called_deleted(cluster, monkeypatch):
    monkeypatch.setattr(stream, "LOSS_CONFIRMED_AFTER_S", 0)
    reader = StreamReader(OPTIONS, StructType().add("value", BinaryType()))
    stood = StreamOffset({TopicPartition("t", 0): 0, TopicPartition("other", 0): 7})

    with pytest.raises(DataLost, match="offset 7 of other-0, which its options .* no longer name"):
        reader.latestOffset(stood.to_json(), ReadAllAvailable())
