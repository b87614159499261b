"""A broker of one kind on the id and the data directory of a stopped broker of the other kind."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.storage.checkpoint import META_PROPERTIES, read_properties
from headrace.world.files import SystemFiles
from tests.fakes.waiting import wait_until

from . import records
from .mixed_cluster import Kind, MixedCluster
from .test_mixed_clusters import (
    GROUP,
    LIMIT_S,
    committed,
    contents,
    elect_preferred_leaders,
    find_coordinator,
    other,
    produce,
)

pytestmark = pytest.mark.usefixtures("kafka_jars")

TOPIC = "orders"
BEGUN_BY_KAFKA, BEGUN_BY_HEADRACE = 0, 2


def test_each_kind_takes_the_place_of_the_other_and_gives_it_back(tmp_path: Path) -> None:
    with MixedCluster((Kind.KAFKA, Kind.KAFKA, Kind.HEADRACE), tmp_path) as cluster:
        for broker_id in (BEGUN_BY_KAFKA, BEGUN_BY_HEADRACE):
            topic = f"{TOPIC}-{broker_id}"
            kind = cluster.kind(broker_id)
            cluster.create(topic, kind)
            assert cluster.leader_of(topic) == broker_id
            servers = cluster.bootstrap_servers
            records.write_every_kind(servers, topic)
            records.write_transactions(servers, topic)
            seen = records.read(servers, topic)
            identity = identity_of(cluster, broker_id)
            first_segment = segment_of(cluster, broker_id, topic)
            inode = first_segment.stat().st_ino
            for place, successor in enumerate((other(kind), kind)):
                cluster.replace(broker_id, successor)
                cluster.wait_in_sync(topic)
                assert cluster.kind(broker_id) is successor
                lead_again(cluster, topic, broker_id)
                assert records.read(servers, topic) == seen
                produce(cluster, topic, [f"of {successor.value} {place}"])
                seen = records.read(servers, topic)
                cluster.wait_level(topic)
                assert identity_of(cluster, broker_id) == identity
                # The replica went on with its files; it did not copy them again.
                assert segment_of(cluster, broker_id, topic).stat().st_ino == inode
            assert contents(cluster, topic)[-1] == f"of {kind.value} 1"


def test_offsets_committed_at_a_coordinator_are_known_to_its_successor(tmp_path: Path) -> None:
    with MixedCluster((Kind.KAFKA,), tmp_path) as cluster:
        cluster.create_topics([TOPIC])
        produce(cluster, TOPIC, ["one", "two"])
        commit(cluster, "group", 1)
        cluster.replace(0, Kind.HEADRACE)
        assert find_coordinator(cluster, "group", GROUP) == 0
        assert committed(cluster, "group", TOPIC) == 1
        commit(cluster, "group", 2)
        cluster.replace(0, Kind.KAFKA)
        assert committed(cluster, "group", TOPIC) == 2
        assert contents(cluster, TOPIC) == ["one", "two"]


def commit(cluster: MixedCluster, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def lead_again(cluster: MixedCluster, topic: str, broker_id: int) -> None:
    elect_preferred_leaders(cluster)
    wait_until(lambda: cluster.leader_of(topic) == broker_id, LIMIT_S)


def segment_of(cluster: MixedCluster, broker_id: int, topic: str) -> Path:
    return cluster.brokers[broker_id].data / f"{topic}-0" / f"{0:020}.log"


def identity_of(cluster: MixedCluster, broker_id: int) -> dict[str, str]:
    path = cluster.brokers[broker_id].data / META_PROPERTIES
    found = read_properties(SystemFiles(), path)
    assert found is not None
    return {name: found[name] for name in ("version", "cluster.id", "broker.id")}
