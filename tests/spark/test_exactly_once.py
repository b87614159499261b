"""Exactly-once writes: repeated batches, lost responses, fenced runs."""

import json

import pytest

from headrace.arrow.encoding import EncodedBatch
from headrace.client.cluster import ClientSettings
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.exactly_once import commit_batch
from headrace.spark.failures import PipelineError
from headrace.spark.markers import Markers
from headrace.spark.options import parse_sink
from headrace.spark.transaction import Transaction
from tests.spark.kit import with_options

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def options(bootstrap, topics):
    return parse_sink(
        {
            "kafka.bootstrap.servers": bootstrap,
            "delivery": "exactly-once",
            "delivery.markerTopic": topics.name("markers"),
        }
    )


@pytest.fixture
def cluster(bootstrap):
    client = Cluster(ClientSettings(bootstrap))
    yield client
    client.close()


def a_batch(topic, values, partition=0):
    records = [Record(n, 1000, None, value.encode()) for n, value in enumerate(values)]
    return EncodedBatch(TopicPartition(topic, partition), len(records), build_batch(records))


def values(topics, topic, isolation="read_committed"):
    return sorted(m.value().decode() for m in topics.read(topic, isolation))


def test_a_stream_copies_a_topic_once_over_several_runs(
    spark, topics, read_stream, bootstrap, tmp_path
):
    source, target = topics.create(partitions=2), topics.create(partitions=3)
    frame = read_stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=30)

    def run():
        writer = with_options(
            frame.select("key", "value").writeStream.format("headrace"),
            bootstrap,
            {"topic": target, "delivery": "exactly-once", "checkpointLocation": tmp_path / "c"},
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    for round_ in range(2):
        for partition in range(2):
            topics.send(source, [f"{round_}-{partition}-{n}" for n in range(50)], partition)
        run()

    assert values(topics, target) == sorted(
        f"{r}-{p}-{n}" for r in range(2) for p in range(2) for n in range(50)
    )


def test_a_committed_batch_is_not_written_again(topics, cluster, options):
    topic = topics.create()
    query = topics.name("query")

    def commit(batch_id, *rows):
        return commit_batch(cluster, options, lambda: [a_batch(topic, rows)], query, batch_id)

    assert commit(0, "a", "b")
    assert not commit(0, "a", "b")
    assert commit(1, "c")
    assert not commit(0, "a", "b")
    assert not commit(1, "c")

    assert values(topics, topic) == ["a", "b", "c"]


def test_an_open_transaction_of_a_dead_run_is_aborted(topics, cluster, options):
    topic, query = topics.create(), topics.name("query")
    dead = Transaction(cluster, f"headrace-{query}", options)
    dead.write([a_batch(topic, ["lost"])])
    dead.flush()

    assert commit_batch(cluster, options, lambda: [a_batch(topic, ["kept"])], query, 0)

    assert values(topics, topic) == ["kept"]
    assert values(topics, topic, "read_uncommitted") == ["kept", "lost"]


def test_a_zombie_that_resumes_after_the_next_run_commits_nothing(topics, cluster, options):
    topic, query = topics.create(), topics.name("query")
    zombie = Transaction(cluster, f"headrace-{query}", options)
    zombie.write([a_batch(topic, ["zombie"])])
    zombie.flush()
    commit_batch(cluster, options, lambda: [a_batch(topic, ["once"])], query, 0)

    with pytest.raises(PipelineError, match="another run of this query has taken over"):
        zombie.commit()

    assert values(topics, topic) == ["once"]


def test_a_failure_while_writing_leaves_nothing_behind(topics, cluster, options):
    topic, query = topics.create(), topics.name("query")

    def rows():
        yield a_batch(topic, ["a"])
        raise PipelineError("the rows end here")

    with pytest.raises(PipelineError, match="the rows end here"):
        commit_batch(cluster, options, rows, query, 0)
    assert values(topics, topic) == []

    assert commit_batch(cluster, options, lambda: [a_batch(topic, ["a"])], query, 0)
    assert values(topics, topic) == ["a"]


def test_a_commit_whose_response_is_lost_is_repeated(topics, cluster, options, monkeypatch):
    from headrace.client.errors import Disconnected
    from headrace.wire import messages as m

    topic, query = topics.create(), topics.name("query")
    asked = []
    ask = Cluster.ask

    def forgetful(self, broker_id, request, kind, **more):
        answer = ask(self, broker_id, request, kind, **more)
        if kind is m.EndTxnResponse:
            asked.append(request.committed)
            if len(asked) == 1:
                raise Disconnected("the answer was lost")
        return answer

    monkeypatch.setattr(Cluster, "ask", forgetful)
    assert commit_batch(cluster, options, lambda: [a_batch(topic, ["a"])], query, 0)

    assert asked == [True, True]
    assert values(topics, topic) == ["a"]


def test_each_query_finds_its_own_marker(topics, cluster, options):
    topic = topics.create()
    queries = [topics.name("query") for _ in range(12)]
    for batch_id in range(3):
        for query in queries:
            commit_batch(cluster, options, lambda: [a_batch(topic, ["x"])], query, batch_id)

    for query in queries:
        assert Markers(cluster, options.marker_topic, query).last_batch(30_000) == 2
    assert Markers(cluster, options.marker_topic, "unknown").last_batch(30_000) is None


def test_a_marker_far_from_the_end_is_found(topics, cluster, options, bootstrap):
    markers = Markers(cluster, options.marker_topic, "ours")
    lines = [("ours", json.dumps({"batch": 7}))] + [(f"q{n}", '{"batch": 1}') for n in range(3000)]
    topics.send(options.marker_topic, lines, markers.place.partition)

    assert markers.last_batch(30_000) == 7
