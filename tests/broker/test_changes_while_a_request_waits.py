"""Requests that wait notice what changed meanwhile."""

import asyncio
import threading

import pytest

from headrace.broker.broker import Broker as Node
from headrace.coordination.registry import Registry
from headrace.core.controller import CreateTopic
from headrace.core.topics import NewTopic
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.model.settings.resources import ResourceType
from headrace.records import record
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.standin import in_loop, running
from tests.fakes.transactional_client import TransactionalClient
from tests.fakes.waiting import wait_until


class Held:
    """A function whose callers, in threads, wait until the test lets them go."""

    def __init__(self, function):
        self._function = function
        self.reached, self.let_go = threading.Event(), threading.Event()

    def __call__(self, *arguments):
        self.reached.set()
        assert self.let_go.wait(20)
        return self._function(*arguments)


@pytest.fixture
def clients():
    with (
        Broker(topics=["t"]) as broker,
        TransactionalClient(broker.bootstrap_servers) as first,
        TransactionalClient(broker.bootstrap_servers) as second,
    ):
        yield first, second


def test_a_batch_whose_transaction_ended_during_recompression_starts_no_other(clients, monkeypatch):
    late, ending = clients
    late.create_topic("packed", compression_type="gzip")  # recompressed in a thread
    producer = late.start("tx")
    assert late.add("tx", producer, "packed", 0) is ErrorCode.NONE
    assert late.put("tx", producer, "packed", b"in time") is ErrorCode.NONE
    held = Held(record.recompress)
    monkeypatch.setattr(record, "recompress", held)
    codes = []
    putting = threading.Thread(
        target=lambda: codes.append(late.put("tx", producer, "packed", b"late", sequence=1))
    )
    putting.start()
    assert held.reached.wait(20)
    assert ending.end("tx", producer, False) is ErrorCode.NONE
    wait_until(lambda: ending.state("tx") == "CompleteAbort")
    held.let_go.set()
    putting.join(20)
    assert codes == [ErrorCode.INVALID_TXN_STATE]
    partition = ending.partition_of("packed")
    assert partition.last_stable_offset == partition.high_watermark  # no transaction is open


@in_loop
async def test_deleting_a_topic_by_id_does_not_delete_its_successor(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        old = broker.metadata.topics["t"]
        state = m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=old.topic_id)
        broker.replicas.before_delete = asyncio.Event()
        first = asyncio.create_task(broker.controller.delete_topics(["t"]))
        again = asyncio.create_task(broker.controller.create_topics([NewTopic("t")]))
        # It still finds the topic.
        by_id = asyncio.create_task(
            broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[state], timeout_ms=1000)
        )
        await broker.replicas.delete_reached.wait()
        broker.replicas.before_delete.set()
        await asyncio.gather(first, again)
        (result,) = (await by_id).responses
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert result.topic_id == old.topic_id
        assert broker.metadata.topics["t"].topic_id != old.topic_id


@in_loop
async def test_a_disk_failure_during_a_deletion_does_not_affect_the_next_topic(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        lost = [(TopicPartition("t", 0), broker.metadata.topics["t"].topic_id)]
        broker.replicas.before_delete = asyncio.Event()
        deleting = asyncio.create_task(broker.controller.delete_topics(["t"]))
        again = asyncio.create_task(broker.controller.create_topics([NewTopic("t")]))
        await broker.replicas.delete_reached.wait()
        failing = asyncio.create_task(broker.controller.replicas_failed(lost))
        await asyncio.sleep(0)
        broker.replicas.before_delete.set()
        await asyncio.gather(deleting, again, failing)
        (partition,) = broker.metadata.topics["t"].partitions
        assert (partition.leader, partition.offline) == (broker.broker_id, ())


@in_loop
async def test_partitions_on_a_failed_disk_lose_their_leader(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        topic_id = broker.metadata.topics["t"].topic_id
        await broker.controller.replicas_failed([(TopicPartition("t", 0), topic_id)])
        (partition,) = broker.metadata.topics["t"].partitions
        assert (partition.leader, partition.offline) == (-1, (broker.broker_id,))


@in_loop
async def test_a_topic_is_not_created_on_a_disk_that_failed_after_placement(tmp_path, monkeypatch):
    log_dirs = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    node = Node(BrokerConfig.parse({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": log_dirs}))
    await node.start()
    commit = Registry.commit

    async def commit_while_the_disk_fails(registry, *changes):
        await commit(registry, *changes)
        node.services.logs.directories[0].take_offline("tested")

    with monkeypatch.context() as patched:
        patched.setattr(Registry, "commit", commit_while_the_disk_fails)
        (refusal,) = await node.services.controller.create_topics([NewTopic("t")])
    assert refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "t" not in node.services.metadata.topics
    (again,) = await node.services.controller.create_topics([NewTopic("t")])
    assert isinstance(again, CreateTopic)
    assert node.services.replicas.require("t", 0).log.offline is None
    await node.stop()


@in_loop
async def test_settings_of_a_topic_do_not_apply_to_its_successor(tmp_path):
    async with running(tmp_path) as broker:
        old, new = {"retention.ms": "1"}, {"segment.bytes": "2000000"}
        await broker.controller.create_topics([NewTopic("t", overrides=old)])
        broker.replicas.before_delete = asyncio.Event()
        deleting = asyncio.create_task(broker.controller.delete_topics(["t"]))
        again = asyncio.create_task(broker.controller.create_topics([NewTopic("t", overrides=new)]))
        request = m.IncrementalAlterConfigsRequest
        change = request.AlterableConfig(name="flush.ms", config_operation=0, value="3")
        resource = request.AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name="t", configs=[change]
        )
        altering = asyncio.create_task(
            broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
        )
        await broker.replicas.delete_reached.wait()
        broker.replicas.before_delete.set()
        await asyncio.gather(deleting, again)
        (answer,) = (await altering).responses
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.dynamic_config.overrides(ResourceType.TOPIC, "t") == new
