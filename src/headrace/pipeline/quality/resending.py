"""Sends dead letters back to the pipeline that wrote them, through a topic that only it reads.

A retry names the place of its record and its attempt. The pipeline lands each attempt once, so a
letter may be sent any number of times, also by a command that was killed and run again.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from headrace.arrow.encoding import EncodedBatch
from headrace.model.dead_letters import HEADER_PREFIX, RETRY_CONFIGS, retry_topic
from headrace.model.ids import TopicPartition
from headrace.pipeline.quality.letters import Letter
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, new_identity

_BATCH_SIZE = 500_000


def resend(cluster: Cluster, letters: Sequence[Letter]) -> None:
    """Send these letters, with their content, to the retry topics of their pipelines."""
    by_pipeline: dict[str, list[Letter]] = {}
    for one in letters:
        assert one.pipeline is not None, "a load reads no retries"
        by_pipeline.setdefault(one.pipeline, []).append(one)
    with BatchSender(cluster, new_identity(cluster)) as sender:
        for pipeline, ours in by_pipeline.items():
            topic = retry_topic(pipeline)
            cluster.create_topic(topic, 1, RETRY_CONFIGS)
            sender.send(_batches(topic, ours))
        sender.flush()


def retry_headers(letter: Letter) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of the record, and ours. The attempt is that of the retry."""
    ours = {
        "topic": letter.topic,
        "topicid": letter.topic_id,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "attempt": letter.attempt + 1,
        "pipeline": letter.pipeline,
        "stage": letter.stage,
        "rule": letter.rule,
        "reason": letter.reason,
        "sinks": letter.sinks,
    }
    return (
        *letter.headers,
        *(
            (f"{HEADER_PREFIX}{name}", str(value).encode())
            for name, value in ours.items()
            if value is not None
        ),
    )


def _batches(topic: str, letters: Iterable[Letter]) -> Iterator[EncodedBatch]:
    now_ms = time.time_ns() // 1_000_000
    group: list[Record] = []
    size = 0
    for one in letters:
        group.append(Record(len(group), now_ms, one.key, one.value, retry_headers(one)))
        size += len(one.key or b"") + len(one.value or b"") + 500
        if size > _BATCH_SIZE:
            yield _batch(topic, group)
            group, size = [], 0
    if group:
        yield _batch(topic, group)


def _batch(topic: str, records: list[Record]) -> EncodedBatch:
    return EncodedBatch(TopicPartition(topic, 0), len(records), build_batch(records))
