"""CreateTopics, DeleteTopics and CreatePartitions, in every version, as in Kafka 4.3."""

import logging

import pytest

from headrace.core.topics import NewTopic
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_TOPIC_ID
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey
from tests.fakes.standin import in_loop, running

Creatable = m.CreateTopicsRequest.CreatableTopic


def versions(api_key: ApiKey) -> range:
    first, last = SERVED[api_key]
    return range(first, last + 1)


def creatable(name, partitions=1, replicas=1, assignments=(), configs=None):
    request = m.CreateTopicsRequest
    return Creatable(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            request.CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in assignments
        ],
        configs=[
            request.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )


async def create(broker, *topics, api_version=7, validate_only=False):
    answer = await broker.ask(
        ApiKey.CREATE_TOPICS,
        api_version,
        topics=list(topics),
        timeout_ms=1000,
        validate_only=validate_only,
    )
    return {topic.name: topic for topic in answer.topics}


@pytest.mark.parametrize("api_version", versions(ApiKey.CREATE_TOPICS))
@in_loop
async def test_every_version_creates_a_topic_and_describes_it(tmp_path, api_version):
    async with running(tmp_path) as broker:
        made = await create(broker, creatable("t", 3), api_version=api_version)
        assert (made["t"].error_code, made["t"].error_message) == (0, None)
        assert len(broker.metadata.topics["t"].partitions) == 3
        if api_version >= 5:
            assert (made["t"].num_partitions, made["t"].replication_factor) == (3, 1)
            assert made["t"].topic_config_error_code == 0
        if api_version >= 7:
            assert made["t"].topic_id == broker.metadata.topics["t"].topic_id


@in_loop
async def test_all_settings_are_listed_with_their_sources(tmp_path):
    async with running(tmp_path, {"log.segment.bytes": "2000000"}) as broker:
        await broker.controller.alter_configs(4, "", {"log.retention.ms": "99"})
        await broker.controller.alter_configs(
            4, str(broker.broker_id), {"message.max.bytes": "5000"}
        )
        made = await create(broker, creatable("t", configs={"cleanup.policy": "compact"}))
        settings = {s.name: (s.value, s.config_source) for s in made["t"].configs}
        assert len(settings) == len(made["t"].configs) == 33
        assert settings["cleanup.policy"] == ("compact", 1)
        assert settings["max.message.bytes"] == ("5000", 2)
        assert settings["retention.ms"] == ("99", 3)
        assert settings["segment.bytes"] == ("2000000", 4)
        assert settings["min.cleanable.dirty.ratio"] == ("0.5", 5)
        assert not any(s.read_only or s.is_sensitive for s in made["t"].configs)


@in_loop
async def test_validate_only_has_the_same_response_and_creates_nothing(tmp_path):
    async with running(tmp_path) as broker:
        answers = await create(broker, creatable("t", 3), creatable(".."), validate_only=True)
        assert (answers["t"].error_code, answers["t"].num_partitions) == (0, 3)
        assert answers[".."].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert broker.metadata.topics == {}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creatable(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("is.there"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("is_there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creatable("x", 0), ErrorCode.INVALID_PARTITIONS),
        (creatable("x", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("x", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("x", 1_000_000), ErrorCode.POLICY_VIOLATION),
        (creatable("x", 1, 1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (creatable("x", -1, -1, [(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("x", -1, -1, [(0, [7])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("x", configs={"retention.ms": "abc"}), ErrorCode.INVALID_CONFIG),
        (creatable("x", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (creatable("x", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (creatable("x", 0, configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (creatable("x", 1, 2, configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (creatable("is_there", configs={"no.such": "1"}), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creatable("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
    ],
)
@in_loop
async def test_an_invalid_request_gets_kafkas_code_and_a_reason(tmp_path, topic, code):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("is_there")])
        (answer,) = (await create(broker, topic)).values()
        assert answer.error_code == code
        assert answer.error_message
        assert (answer.num_partitions, answer.replication_factor) == (-1, -1)
        assert set(broker.metadata.topics) == {"is_there"}


@in_loop
async def test_a_repeated_name_gets_one_error_and_other_topics_are_created(tmp_path):
    async with running(tmp_path) as broker:
        answers = await create(broker, creatable("two"), creatable("two"), creatable("one"))
        assert answers["two"].error_code == ErrorCode.INVALID_REQUEST
        assert answers["one"].error_code == 0
        assert set(broker.metadata.topics) == {"one"}


@in_loop
async def test_minus_one_means_the_brokers_defaults(tmp_path):
    async with running(tmp_path, {"num.partitions": "6"}) as broker:
        made = await create(broker, creatable("t", -1, -1))
        assert (made["t"].num_partitions, made["t"].replication_factor) == (6, 1)


# --- DeleteTopics

Deletable = m.DeleteTopicsRequest.DeleteTopicState


@pytest.mark.parametrize("api_version", versions(ApiKey.DELETE_TOPICS))
@in_loop
async def test_every_version_deletes_by_name(tmp_path, api_version):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        wanted = (
            {"topics": [Deletable(name="t"), Deletable(name="gone")]}
            if api_version >= 6
            else {"topic_names": ["t", "gone"]}
        )
        answer = await broker.ask(ApiKey.DELETE_TOPICS, api_version, timeout_ms=1000, **wanted)
        codes = {result.name: result.error_code for result in answer.responses}
        assert codes == {"t": 0, "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert broker.metadata.topics == {}


@in_loop
async def test_a_topic_is_deleted_by_its_id(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        topic_id = broker.metadata.topics["t"].topic_id
        for code, name in [(ErrorCode.NONE, "t"), (ErrorCode.UNKNOWN_TOPIC_ID, None)]:
            answer = await broker.ask(
                ApiKey.DELETE_TOPICS, 6, topics=[Deletable(name=None, topic_id=topic_id)]
            )
            (result,) = answer.responses
            assert (result.error_code, result.name, result.topic_id) == (code, name, topic_id)


@in_loop
async def test_a_topic_named_twice_both_ways_or_not_at_all_is_an_invalid_request(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        topic_id = broker.metadata.topics["t"].topic_id
        for wanted in (
            [Deletable(name="t"), Deletable(name="t")],
            [Deletable(name="t", topic_id=topic_id)],
            [Deletable(name="t"), Deletable(name=None, topic_id=topic_id)],
            [Deletable(name=None, topic_id=NO_TOPIC_ID)],
        ):
            answer = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=wanted)
            assert [r.error_code for r in answer.responses] == [ErrorCode.INVALID_REQUEST]
        assert "t" in broker.metadata.topics


@in_loop
async def test_deletion_is_refused_if_it_is_disabled(tmp_path):
    async with running(tmp_path, {"delete.topic.enable": "false"}) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        answer = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[Deletable(name="t")])
        assert answer.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert "t" in broker.metadata.topics


# --- CreatePartitions


def growing(name, count, assignments=None):
    request = m.CreatePartitionsRequest
    return request.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [request.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
    )


@pytest.mark.parametrize("api_version", versions(ApiKey.CREATE_PARTITIONS))
@in_loop
async def test_every_version_adds_partitions(tmp_path, api_version):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 1), NewTopic("u", 1)])
        me = broker.broker_id
        answer = await broker.ask(
            ApiKey.CREATE_PARTITIONS,
            api_version,
            topics=[growing("t", 4), growing("u", 2, [[me]])],
            timeout_ms=1000,
        )
        assert {r.name: (r.error_code, r.error_message) for r in answer.results} == {
            "t": (0, None),
            "u": (0, None),
        }
        assert len(broker.metadata.topics["t"].partitions) == 4
        assert len(broker.replicas.hosted) == 6


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("gone", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 2_000_000, None, ErrorCode.POLICY_VIOLATION),
    ],
)
@in_loop
async def test_invalid_new_partitions_get_kafkas_code(tmp_path, name, count, assignments, code):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 2)])
        answer = await broker.ask(
            ApiKey.CREATE_PARTITIONS, 3, topics=[growing(name, count, assignments)]
        )
        assert answer.results[0].error_code == code


@in_loop
async def test_validate_only_adds_no_partitions_and_a_repeated_name_is_refused(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 2)])
        valid = await broker.ask(
            ApiKey.CREATE_PARTITIONS, 3, topics=[growing("t", 4)], validate_only=True
        )
        assert valid.results[0].error_code == 0
        twice = await broker.ask(
            ApiKey.CREATE_PARTITIONS, 3, topics=[growing("t", 4), growing("t", 5)]
        )
        assert [r.error_code for r in twice.results] == [ErrorCode.INVALID_REQUEST]
        assert len(broker.metadata.topics["t"].partitions) == 2


# --- the log


@in_loop
async def test_the_log_says_which_topics_were_created_grown_and_deleted(tmp_path, caplog):
    async with running(tmp_path) as broker:
        with caplog.at_level(logging.INFO, logger="headrace.controller"):
            caplog.clear()
            await create(broker, creatable("one"), creatable("three", 3))
            await create(broker, creatable("never", 3), validate_only=True)
            await broker.controller.create_partitions("one", 2)
            await broker.controller.delete_topics(["one", "gone"])
        assert [record.getMessage() for record in caplog.records] == [
            "Created topic one with 1 partition",
            "Created topic three with 3 partitions",
            "Added 1 partition to topic one; it now has 2",
            "Deleted topic one",
        ]
