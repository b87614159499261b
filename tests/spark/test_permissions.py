"""The errors that a user without permissions gets.

They run against Apache Kafka with ACLs: our own broker has no ACLs yet.
"""

import logging
import re

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from bench import apache_kafka
from headrace.client.cluster import ClientSettings
from headrace.client.errors import ClientError
from headrace.model.ids import TopicPartition
from headrace.spark.batch import BatchReader
from headrace.spark.cluster import Cluster
from headrace.spark.group_progress import GroupProgress
from headrace.spark.options import parse_sink, parse_source
from headrace.spark.sink import commit_tasks, write_task
from tests.spark.kit import Topics

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]

ROWS = [pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})]
OPEN, READ_ONLY, HIDDEN, DESCRIBED = "open", "read-only", "hidden", "described"


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    if reason := apache_kafka.missing():
        pytest.skip(f"Apache Kafka {reason}")
    node = apache_kafka.KafkaNode(
        tmp_path_factory.mktemp("kafka") / "data",
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    node.start()
    yield node.address
    node.stop()


@pytest.fixture(scope="module")
def rules(bootstrap):
    """Topics named after their ACLs; an ACL for another user denies access to all others."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    topics = Topics(bootstrap)
    for name in (OPEN, READ_ONLY, HIDDEN, DESCRIBED):
        topics.create(name=name)
    topics.send(DESCRIBED, ["v"])
    everybody, another_user = "User:*", "User:another_user"
    topic = (ResourceType.TOPIC, ResourcePatternType.LITERAL)
    beginning = ResourcePatternType.PREFIXED
    wanted = [
        (*topic, READ_ONLY, everybody, AclOperation.READ),
        (*topic, DESCRIBED, everybody, AclOperation.DESCRIBE),
        (*topic, HIDDEN, another_user, AclOperation.ALL),
        (ResourceType.TRANSACTIONAL_ID, beginning, "headrace-no", another_user, AclOperation.ALL),
        (ResourceType.GROUP, beginning, "no", another_user, AclOperation.ALL),
    ]
    made = topics.admin.create_acls(
        [
            AclBinding(kind, name, pattern, who, "*", what, AclPermissionType.ALLOW)
            for kind, pattern, name, who, what in wanted
        ]
    )
    for done in made.values():
        done.result(30)


def write(bootstrap, query_id="yes", **given):
    options = {"kafka.bootstrap.servers": bootstrap, "topic": OPEN}
    options |= {name.replace("__", "."): value for name, value in given.items()}
    checked = parse_sink(options)
    message = write_task(checked, ROWS)
    if checked.exactly_once:
        commit_tasks(checked, [message], query_id, 0)


WRITES = {
    "a topic that may not be seen": (
        {"topic": HIDDEN}, f"row 0 of this task is for topic '{HIDDEN}'", "the option topic",
    ),
    "a topic that may be read only": (
        {"topic": READ_ONLY}, f"cannot write to {READ_ONLY}-0", "WRITE for writing",
    ),
    "the same in a transaction": (
        {"topic": READ_ONLY, "delivery": "exactly-once"},
        f"writing to {READ_ONLY}-0: TOPIC_AUTHORIZATION_FAILED", "WRITE for writing",
    ),
    "the transaction itself": (
        {"query_id": "no", "delivery": "exactly-once"},
        "'headrace-no': TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "transactional ids headrace-*",
    ),
    "the topic of markers": (
        {"delivery": "exactly-once", "delivery__markerTopic": HIDDEN},
        f"creating topic '{HIDDEN}' (option delivery.markerTopic)", "DESCRIBE on this topic",
    ),
    "the staging topic": (
        {
            "delivery": "exactly-once", "delivery__stagingTopic": HIDDEN,
            "delivery__messageBytesMax": "1",
        },
        f"creating topic '{HIDDEN}' (option delivery.stagingTopic)", "DESCRIBE on this topic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITES)
def test_a_write_without_permission_names_the_place_and_what_to_change(bootstrap, rules, case):
    given, place, advice = WRITES[case]

    with pytest.raises(ClientError) as refused:
        write(bootstrap, **given)

    assert place in str(refused.value)
    assert advice in str(refused.value)


def test_a_write_with_permission_is_not_refused(bootstrap, rules):
    write(bootstrap)
    write(bootstrap, delivery="exactly-once")

    assert len(Topics(bootstrap).read(OPEN)) == 2


def read(bootstrap, topic):
    options = parse_source(
        {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, streaming=False
    )
    reader = BatchReader(options, StructType().add("value", BinaryType()))
    return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))


@pytest.mark.parametrize(
    ("topic", "place"), [(HIDDEN, f"topic '{HIDDEN}'"), (DESCRIBED, f"fetching {DESCRIBED}-0")]
)
def test_a_read_without_permission_names_the_place_and_what_to_change(
    bootstrap, rules, topic, place
):
    with pytest.raises(ClientError) as refused:
        read(bootstrap, topic)

    assert f"{place}: TOPIC_AUTHORIZATION_FAILED" in str(refused.value)
    assert "READ for reading" in str(refused.value)


def test_a_group_that_may_not_be_used_is_named(bootstrap, rules, caplog):
    cluster = Cluster(ClientSettings(bootstrap))
    place = TopicPartition(OPEN, 0)
    with caplog.at_level(logging.WARNING):
        GroupProgress().commit(
            cluster, "no-1", "query", {place: 0}, look_for_others=False, within_s=30
        )
    cluster.close()

    assert re.search(r"'no-1'.*GROUP_AUTHORIZATION_FAILED .*kafka.group.id", caplog.text)
