"""Metadata and DescribeTopicPartitions, in every version, as Kafka 4.3 answers them."""

import pytest

from headrace.broker.context import Context
from headrace.broker.handlers.metadata import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    build_metadata,
)
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    ClusterMetadata,
    Endpoint,
    PartitionState,
    TopicState,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey
from tests.fakes.standin import in_loop, running

VERSIONS = range(SERVED[ApiKey.METADATA][0], SERVED[ApiKey.METADATA][1] + 1)


def named(*names: str) -> list[m.MetadataRequest.MetadataRequestTopic]:
    return [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]


def by_id(topic_id: bytes) -> m.MetadataRequest.MetadataRequestTopic:
    return m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)


def test_without_an_authorizer_the_operations_are_those_that_kafka_computes():
    assert (TOPIC_OPERATIONS, CLUSTER_OPERATIONS, NOT_ASKED) == (3576, 8096, -2147483648)


@pytest.mark.parametrize("api_version", VERSIONS)
@in_loop
async def test_every_version_shows_brokers_topics_and_leaders(tmp_path, api_version):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 2)])
        answer = await broker.ask(ApiKey.METADATA, api_version, topics=named("t"))
        (node,) = answer.brokers
        assert (node.node_id, node.host, node.port) == (broker.broker_id, "127.0.0.1", 9092)
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (0, "t")
        assert [p.leader_id for p in topic.partitions] == [broker.broker_id] * 2
        assert [p.isr_nodes for p in topic.partitions] == [[broker.broker_id]] * 2
        if api_version >= 1:
            assert answer.controller_id == broker.broker_id
        if api_version >= 2:
            assert answer.cluster_id == broker.metadata.cluster_id
        if api_version >= 10:
            assert topic.topic_id == broker.metadata.topics["t"].topic_id


@in_loop
async def test_null_asks_for_all_topics_and_an_empty_list_for_none_except_in_version_0(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("a"), NewTopic("b")])

        async def names(api_version, topics):
            answer = await broker.ask(ApiKey.METADATA, api_version, topics=topics)
            return [topic.name for topic in answer.topics]

        assert await names(0, []) == ["a", "b"]
        assert await names(1, None) == ["a", "b"]
        assert await names(1, []) == []
        assert await names(12, None) == ["a", "b"]


@in_loop
async def test_a_topic_is_found_by_its_id_until_it_is_deleted_and_created_again(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        topic_id = broker.metadata.topics["t"].topic_id

        async def ask():
            answer = await broker.ask(ApiKey.METADATA, 12, topics=[by_id(topic_id)])
            return answer.topics[0]

        assert (await ask()).name == "t"
        await broker.controller.delete_topics(["t"])
        await broker.controller.create_topics([NewTopic("t")])
        gone = await ask()
        assert (gone.error_code, gone.name, gone.topic_id) == (
            ErrorCode.UNKNOWN_TOPIC_ID,
            None,
            topic_id,
        )


@in_loop
async def test_missing_topics_are_made_by_old_versions_always_and_by_new_ones_if_they_agree(
    tmp_path,
):
    async with running(tmp_path, {"num.partitions": "3"}) as broker:
        for api_version in (0, 3):
            name = f"old{api_version}"
            answer = await broker.ask(ApiKey.METADATA, api_version, topics=named(name))
            assert answer.topics[0].error_code == 0
            assert len(answer.topics[0].partitions) == 3
        agrees = await broker.ask(
            ApiKey.METADATA, 9, topics=named("yes"), allow_auto_topic_creation=True
        )
        assert agrees.topics[0].error_code == 0
        refuses = await broker.ask(
            ApiKey.METADATA, 9, topics=named("no"), allow_auto_topic_creation=False
        )
        assert refuses.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert set(broker.metadata.topics) == {"old0", "old3", "yes"}


@in_loop
async def test_nothing_is_made_where_the_setting_forbids_it(tmp_path):
    async with running(tmp_path, {"auto.create.topics.enable": "false"}) as broker:
        answer = await broker.ask(ApiKey.METADATA, 1, topics=named("t"))
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.metadata.topics == {}


@pytest.mark.parametrize("api_version", [0, 4, 9, 12])
@in_loop
async def test_names_that_cannot_be_are_answered_one_by_one(tmp_path, api_version):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("a_b")])
        wanted = named("..", "", "x" * 250, "a/b", "a.b", "fine")
        answer = await broker.ask(ApiKey.METADATA, api_version, topics=wanted)
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.INVALID_TOPIC_EXCEPTION
        ] * 5 + [ErrorCode.NONE]
        assert set(broker.metadata.topics) == {"a_b", "fine"}


@in_loop
async def test_more_topics_than_one_request_may_make_are_refused_and_answered(tmp_path):
    async with running(tmp_path) as broker:
        wanted = named(*(f"t{number}" for number in range(20_000)))
        answer = await broker.ask(ApiKey.METADATA, 12, topics=wanted)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}
        assert broker.metadata.topics == {}


@in_loop
async def test_a_topic_asked_for_many_times_is_answered_once(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 100)])
        answer = await broker.ask(ApiKey.METADATA, 12, topics=named(*["t"] * 10_000))
        assert len(answer.topics) == 1


@in_loop
async def test_a_replication_factor_that_cannot_be_met_is_reported_to_clients_that_name_a_topic(
    tmp_path,
):
    async with running(tmp_path, {"default.replication.factor": "3"}) as broker:
        answer = await broker.ask(ApiKey.METADATA, 12, topics=named("t"))
        assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@in_loop
async def test_operations_are_told_when_asked_for(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        silent = await broker.ask(ApiKey.METADATA, 9, topics=named("t"))
        assert silent.cluster_authorized_operations == NOT_ASKED
        assert silent.topics[0].topic_authorized_operations == NOT_ASKED
        asked = await broker.ask(
            ApiKey.METADATA,
            9,
            topics=named("t", "not there", "t2"),
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        assert asked.cluster_authorized_operations == CLUSTER_OPERATIONS
        # What one may do with a topic does not depend on whether it is there.
        operations = [topic.topic_authorized_operations for topic in asked.topics]
        assert operations == [TOPIC_OPERATIONS] * 3


@in_loop
async def test_each_listener_hears_its_own_address(tmp_path):
    endpoints = {"INSIDE": Endpoint("10.0.0.1", 9092), "OUTSIDE": Endpoint("::1", 19092)}
    async with running(tmp_path, endpoints=endpoints) as broker:
        for listener, (host, port, _) in endpoints.items():
            answer = await broker.ask(ApiKey.METADATA, 12, listener=listener, topics=None)
            assert [(b.host, b.port) for b in answer.brokers] == [(host, port)]


@in_loop
async def test_the_rack_is_told(tmp_path):
    async with running(tmp_path, {"broker.rack": "r1"}) as broker:
        answer = await broker.ask(ApiKey.METADATA, 12, topics=None)
        assert answer.brokers[0].rack == "r1"


# --- the metadata alone


def a_cluster(leader: int) -> ClusterMetadata:
    state = PartitionState(
        "t",
        0,
        TopicId(b"i" * 16),
        BrokerId(leader),
        LeaderEpoch(3),
        (BrokerId(1),),
        (BrokerId(1), BrokerId(2)),
        0,
        offline=(BrokerId(2),),
    )
    topic = TopicState("t", TopicId(b"i" * 16), (state,), internal=False)
    entry = BrokerEntry(BrokerId(1), {"INSIDE": Endpoint("h", 1)}, None, 1)
    return ClusterMetadata("c", BrokerId(1), {BrokerId(1): entry}, {"t": topic})


@pytest.mark.parametrize(
    ("leader", "listener", "api_version", "code", "shown_leader"),
    [
        (1, "INSIDE", 12, ErrorCode.NONE, 1),
        (NO_LEADER, "INSIDE", 12, ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER),
        (2, "INSIDE", 12, ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER),
        (1, "OUTSIDE", 12, ErrorCode.LISTENER_NOT_FOUND, NO_LEADER),
        (1, "OUTSIDE", 5, ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER),
    ],
)
def test_a_leader_out_of_reach_is_said_to_be_so(leader, listener, api_version, code, shown_leader):
    context = Context(ApiKey.METADATA, api_version, 1, None, listener, "")
    answer = build_metadata(a_cluster(leader), context, m.MetadataRequest(topics=None))
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (code, shown_leader)
    assert partition.offline_replicas == [2]
    assert len(answer.brokers) == (listener == "INSIDE")


# --- DescribeTopicPartitions

Request = m.DescribeTopicPartitionsRequest


async def describe(broker, *names, limit=2000, cursor=None):
    return await broker.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[Request.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else Request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


@in_loop
async def test_topics_are_described_in_the_order_of_their_names_with_errors_of_their_own(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 2)])
        answer = await describe(broker, "zz", "t", "a/b", "t")
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("t", ErrorCode.NONE),
            ("zz", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert answer.next_cursor is None
        partition = answer.topics[1].partitions[1]
        assert (partition.leader_id, partition.isr_nodes) == (broker.broker_id, [broker.broker_id])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
        assert answer.topics[1].topic_authorized_operations == TOPIC_OPERATIONS
        assert answer.topics[0].topic_id == NO_TOPIC_ID


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
@in_loop
async def test_the_cursor_leads_through_everything_once(tmp_path, limit):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics(
            [NewTopic("a", 4), NewTopic("b", 1), NewTopic("c", 3)]
        )
        for names in ([], ["a", "b", "c"]):
            seen = []
            cursor = None
            while True:
                answer = await describe(broker, *names, limit=limit, cursor=cursor)
                page = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
                assert 0 < len(page) <= limit
                seen += page
                if answer.next_cursor is None:
                    break
                cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
            assert seen == [
                *(("a", p) for p in range(4)),
                ("b", 0),
                *(("c", p) for p in range(3)),
            ]


@in_loop
async def test_a_page_has_at_least_one_partition_and_at_most_what_the_setting_allows(tmp_path):
    async with running(tmp_path, {"max.request.partition.size.limit": "3"}) as broker:
        await broker.controller.create_topics([NewTopic("a", 5)])
        for limit, size in [(0, 1), (-7, 1), (2, 2), (100, 3)]:
            answer = await describe(broker, limit=limit)
            assert len(answer.topics[0].partitions) == size


@in_loop
async def test_a_cursor_that_points_nowhere_is_an_invalid_request(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("a", 2)])
        for cursor in [("a", -1), ("zzz", 0), ("0", 5)]:
            answer = await describe(broker, "a", cursor=cursor)
            assert answer.topics[0].error_code == ErrorCode.INVALID_REQUEST
        beyond = await describe(broker, "a", cursor=("a", 99))
        assert (beyond.topics[0].error_code, beyond.topics[0].partitions) == (0, [])


@in_loop
async def test_a_walk_over_all_topics_goes_on_when_its_topic_was_deleted(tmp_path):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("a"), NewTopic("c", 2)])
        answer = await describe(broker, cursor=("b", 1))
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("c", 2)]
