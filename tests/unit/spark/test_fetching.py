"""Reading a range from a broker that returns no records."""

from types import SimpleNamespace

import pytest

from headrace.client.cluster import ClientSettings, TopicMetadata
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import NO_TOPIC_ID, Cluster
from headrace.spark.failures import DataLost, PipelineError
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings

PLACE = TopicPartition("t", 0)


class Tiered(Cluster):
    """A leader whose log starts at 0, with its first records in remote storage.

    Its first responses are empty, as brokers respond while remote storage is slow.
    """

    timeout_s = 1.0
    in_flight = 0

    def __init__(self, *, first_local, version=9, empty_answers=5):
        super().__init__(ClientSettings("127.0.0.1:1", retry_backoff_ms=1))
        self._topics["t"] = (TopicMetadata(NO_TOPIC_ID, {0: 1}, ErrorCode.NONE), float("inf"))
        self._first_local = first_local
        self._version = version
        self._empty_answers = empty_answers

    def connection(self, broker_id):
        return self

    def version_of(self, request):
        return self._version

    def send(self, request, *, version_max):
        self._request = request

    def receive(self, kind, *, timeout_s):
        self._empty_answers -= 1
        asked = self._request.topics[0].partitions[0].fetch_offset
        records = build_batch([Record(0, 1, None, b"v")])
        if self._empty_answers >= 0 or asked > 0:
            records = b""
        return SimpleNamespace(
            error_code=0,
            responses=[
                SimpleNamespace(
                    partitions=[
                        SimpleNamespace(
                            error_code=0, preferred_read_replica=-1, records=records,
                            high_watermark=1, last_stable_offset=1, aborted_transactions=None,
                        )
                    ]
                )
            ],
        )  # fmt: skip

    def ask(self, broker_id, request, kind, **_):
        (asked,) = request.topics[0].partitions
        assert asked.timestamp == -4
        partition = kind.ListOffsetsPartitionResponse(partition_index=0, offset=self._first_local)
        return kind(topics=[kind.ListOffsetsTopicResponse(name="t", partitions=[partition])])


def values(cluster, offset_end=1, **settings):
    range_ = Range(PLACE, 0, offset_end)
    reader = RangeReader(cluster, range_, NO_TOPIC_ID, FetchSettings(**settings))
    return [value for records in reader for value in records.values().to_pylist()]


def test_a_reader_waits_for_slow_remote_storage():
    assert values(Tiered(first_local=1)) == [b"v"]


@pytest.mark.parametrize("cluster", [{"first_local": 0}, {"first_local": 1, "version": 7}])
def test_offsets_that_are_not_in_remote_storage_are_a_gap(cluster):
    assert values(Tiered(**cluster)) == []


def test_an_end_that_the_log_does_not_reach_is_data_loss():
    cluster = Tiered(first_local=0, empty_answers=0)

    with pytest.raises(DataLost, match="reads up to offset 5; the log ends at 1"):
        values(cluster, 5, poll_timeout_ms=1)
    assert values(cluster, 5, poll_timeout_ms=1, fail_on_data_loss=False) == [b"v"]


def test_visible_records_that_are_not_returned_are_never_skipped():
    cluster = Tiered(first_local=1, empty_answers=1 << 30)

    with pytest.raises(PipelineError, match="returned no records at offset 0"):
        values(cluster, poll_timeout_ms=1, fail_on_data_loss=False)
