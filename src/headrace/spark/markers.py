"""Markers of committed batches: which batch of which query is visible already.

All queries of a cluster share the markers' topic. Committed records are read up to the high
watermark, which waits for open transactions of other queries. Reading only up to the last stable
offset could miss the query's own marker behind an open transaction.
"""

import json
import time

import pyarrow as pa

from headrace.arrow.encoding import EncodedBatch
from headrace.arrow.partitioning import partitions_by_key
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings

_PARTITIONS = 8
_READ_FIRST = 1_000
_READ_GROWTH = 8
_HOUR_MS = 3_600_000


class Markers:
    """The last committed batch of each query, in a compacted topic."""

    def __init__(self, cluster: Cluster, topic: str, query_id: str) -> None:
        self._cluster = cluster
        self._key = query_id.encode()
        cluster.create_topic(
            topic,
            _PARTITIONS,
            {
                "cleanup.policy": "compact",
                # Short enough that compaction keeps up with one batch per second and query.
                "segment.ms": str(_HOUR_MS),
                "min.cleanable.dirty.ratio": "0.1",
            },
            option="delivery.markerTopic",
        )
        count = len(cluster.existing_topic(topic).leaders)
        partition = int(partitions_by_key(pa.array([self._key], pa.binary()), count)[0])
        self.place = TopicPartition(topic, partition)

    def last_batch(self, timeout_ms: int) -> int | None:
        """The newest committed batch. The caller has fenced every other run before.

        The marker of a running query is among the newest records. So records are read from the
        end in growing pieces, until one of this query is found.
        """
        bounds = {
            which: self._cluster.list_offsets({self.place: which}, read_committed=False)[self.place]
            for which in (EARLIEST, LATEST)
        }
        end, count = bounds[LATEST], _READ_FIRST
        while end > bounds[EARLIEST]:
            first = max(bounds[EARLIEST], end - count)
            found = self._last_batch_within(first, end, timeout_ms)
            if found is not None:
                return found
            end, count = first, count * _READ_GROWTH
        return None

    def _last_batch_within(self, first: int, end: int, timeout_ms: int) -> int | None:
        settings = FetchSettings(
            read_committed=True, poll_timeout_ms=timeout_ms, fail_on_data_loss=False
        )
        topic_id = self._cluster.existing_topic(self.place.topic).topic_id
        found = None
        for records in RangeReader(
            self._cluster, Range(self.place, first, end), topic_id, settings
        ):
            pairs = zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
            for key, value in pairs:
                if key == self._key and value is not None:
                    found = int(json.loads(value)["batch"])
        return found

    def record(self, batch_id: int) -> EncodedBatch:
        now_ms = int(time.time() * 1000)
        value = json.dumps({"batch": batch_id}).encode()
        return EncodedBatch(self.place, 1, build_batch([Record(0, now_ms, self._key, value)]))
