"""What handlers of a member ask: its term, NOT_CONTROLLER elsewhere, and what any member does."""

import asyncio
from contextlib import asynccontextmanager
from inspect import isawaitable

import pytest

from headrace.broker.context import Context
from headrace.broker.controller.member_controller import MemberController
from headrace.broker.error_responses import refused
from headrace.broker.handlers import handler
from headrace.broker.metadata.cache import MetadataCache
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.peers import Peers
from headrace.broker.tasks import BackgroundTasks
from headrace.coordination import paths, values
from headrace.coordination.registry import Registry
from headrace.core.features import TRANSACTION_VERSION, FeatureUpdate
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition
from headrace.model.settings.resources import ResourceType
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.standin import RecordedReplicas, StillWorld, in_loop
from tests.fakes.told_brokers import told_cluster, until


class Member:
    """The part of a member that these handlers use."""

    def __init__(self, cluster, broker_id=1, settings=None):
        loop = asyncio.get_running_loop()
        self.session = cluster.session()
        self.registry = Registry(self.session, BrokerId(broker_id))
        self.config = BrokerConfig.parse(settings or {})
        self.dynamic_config = DynamicConfig(self.registry.configs, self.config, BrokerId(broker_id))
        self.metadata_cache = MetadataCache(loop, cluster.failures.append)
        self.metadata_cache.current = ClusterMetadata("c", BrokerId(1), cluster.entries)
        self.directory_failures = 0
        self.fenced = []
        self.cluster = cluster
        self.controller = self.member_controller = MemberController(
            self.registry,
            BrokerId(broker_id),
            self.dynamic_config,
            self.metadata_cache,
            Peers({}.get, "PLAINTEXT", cluster.dial),
            RecordedReplicas(),
            StillWorld(),
            BackgroundTasks(loop, cluster.failures.append),
            cluster.failures.append,
            self._directory_failed,
        )

    @property
    def metadata(self):
        return self.metadata_cache.current

    async def _directory_failed(self):
        self.directory_failures += 1

    async def lead(self):
        elected = await self.registry.take_controllership(StillWorld().now())
        term = self.controller.begin_term(self.registry, elected, lambda: self.fenced.append(True))
        self.cluster.controllers.append(term)
        await term.start()

    async def ask(self, api_key, api_version, request):
        context = Context(api_key, api_version, 1, "test", "PLAINTEXT", "127.0.0.1")
        try:
            answer = handler(api_key)(self, context, request)
            return await answer if isawaitable(answer) else answer
        except Rejected as refusal:
            return refused(context, request, refusal)


@asynccontextmanager
async def a_member(settings=None):
    async with told_cluster() as cluster:
        yield cluster, Member(cluster, settings=settings)


# --- not the controller


@in_loop
async def test_a_member_that_is_not_the_controller_answers_not_controller_per_item():
    async with a_member() as (_, member):
        controller = member.controller
        answers = await controller.create_topics([NewTopic("a", 1, 1), NewTopic("b", 1, 1)])
        answers += await controller.delete_topics(["a"])
        answers += await controller.elect_leaders([TopicPartition("a", 0)], unclean=False)
        for work in (
            controller.create_partitions("a", 2),
            controller.update_features([]),
            controller.reassign({TopicPartition("a", 0): None}),
        ):
            with pytest.raises(Rejected) as refusal:
                await work
            answers.append(refusal.value)
        with pytest.raises(Rejected) as refusal:
            controller.reassignments()
        assert {each.code for each in (*answers, refusal.value)} == {ErrorCode.NOT_CONTROLLER}


@in_loop
async def test_requests_of_brokers_for_the_controller_are_refused_with_kafkas_codes():
    async with a_member() as (_, member):
        answer = await member.ask(ApiKey.ALTER_PARTITION, 3, m.AlterPartitionRequest(topics=[]))
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        answer = await member.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, m.ControlledShutdownRequest())
        assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        answer = await member.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, m.AllocateProducerIdsRequest())
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        topics = [
            m.AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="t",
                partitions=[m.AlterPartitionReassignmentsRequest.ReassignablePartition()],
            )
        ]
        request = m.AlterPartitionReassignmentsRequest(topics=topics)
        answer = await member.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER


@in_loop
async def test_any_member_creates_missing_topics_in_the_tree():
    async with a_member() as (cluster, member):
        codes = await member.controller.auto_create(["auto", "__consumer_offsets"])
        assert codes == dict.fromkeys(codes, ErrorCode.LEADER_NOT_AVAILABLE)
        assert codes.keys() == {"auto", "__consumer_offsets"}
        node = await member.session.get(paths.topic("__consumer_offsets"))
        assert len(values.decode_topic("x", node.value).replicas) == 50
        overrides = await member.registry.configs.read("topics", "__consumer_offsets")
        assert overrides["cleanup.policy"] == "compact"
        # A second client that asks meanwhile hears the same.
        assert await member.controller.auto_create(["auto"]) == {
            "auto": ErrorCode.LEADER_NOT_AVAILABLE
        }
        await cluster.start(2)
        await until(lambda: cluster.brokers[3].leader_of("auto") is not None)


@in_loop
async def test_too_few_brokers_are_waited_for_only_while_a_cluster_starts(monkeypatch, caplog):
    names = ["t", "__consumer_offsets"]
    settings = {"default.replication.factor": "5", "offsets.topic.replication.factor": "5"}
    async with a_member(settings) as (_, member):
        answer = await member.controller.auto_create(names)
        assert answer == dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
        assert "Cannot create" not in caplog.text  # a broker that starts knows no others yet
        monkeypatch.setattr("headrace.broker.controller.member_controller._STARTING_S", -1)
        answer = await member.controller.auto_create(names)
        assert answer == dict.fromkeys(names, ErrorCode.INVALID_REPLICATION_FACTOR)
        assert "Cannot create __consumer_offsets" in caplog.text
        assert await member.session.children(paths.BROKER_TOPICS) == []


@in_loop
async def test_any_member_changes_settings():
    async with a_member() as (cluster, member):
        await cluster.start(2)
        await cluster.controllers[0].create_topics([NewTopic("t", 1, 1)], timeout_s=5)
        controller = member.controller
        with pytest.raises(Rejected) as refusal:
            await controller.alter_configs(ResourceType.TOPIC, "t", {"retention.ms": "5"})
        assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        member.metadata_cache.current = cluster.controllers[0].metadata
        await controller.alter_configs(ResourceType.TOPIC, "t", {"retention.ms": "5"})
        assert await member.registry.configs.read("topics", "t") == {"retention.ms": "5"}
        assert len(await member.session.children(paths.CONFIG_CHANGES)) == 1


@in_loop
async def test_a_failed_log_directory_is_told_to_the_controller():
    async with a_member() as (_, member):
        await member.controller.replicas_failed([])
        assert member.directory_failures == 1


# --- the controller


@in_loop
async def test_the_controller_changes_isrs_by_request():
    async with a_member() as (cluster, member):
        await member.lead()
        assignments = [(0, (1, 2, 3))]
        (created,) = await member.controller.create_topics([NewTopic("t", assignments=assignments)])
        request = m.AlterPartitionRequest
        known = request.PartitionData(
            partition_index=0,
            leader_epoch=0,
            new_isr=[1, 2],
            new_isr_with_epochs=[
                request.BrokerState(broker_id=1),
                request.BrokerState(broker_id=2, broker_epoch=cluster.entries[2].broker_epoch),
            ],
            partition_epoch=0,
        )
        unknown = request.TopicData(topic_id=b"x" * 16, partitions=[request.PartitionData()])
        topic = request.TopicData(topic_id=created.topic.topic_id, partitions=[known])
        for api_version in (3, 2):
            answer = await member.ask(
                ApiKey.ALTER_PARTITION,
                api_version,
                request(
                    broker_id=1,
                    broker_epoch=cluster.entries[1].broker_epoch,
                    topics=[topic, unknown],
                ),
            )
            assert answer.error_code == ErrorCode.NONE
            (changed,), (refusal,) = (each.partitions for each in answer.topics)
            assert (changed.isr, changed.partition_epoch, changed.error_code) == ([1, 2], 1, 0)
            assert (changed.leader_id, changed.leader_epoch) == (1, 0)
            assert refusal.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@in_loop
async def test_the_controller_answers_shutdowns_and_allocates_producer_ids():
    async with a_member() as (cluster, member):
        await member.lead()
        await member.controller.create_topics(
            [NewTopic("t", assignments=[(0, (3, 2)), (1, (2, 3))])]
        )
        cluster.crash(2)
        await until(lambda: cluster.brokers[1].leader_of("t", 1) == 3)
        epoch = cluster.entries[3].broker_epoch
        request = m.ControlledShutdownRequest(broker_id=3, broker_epoch=epoch)
        answer = await member.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, request)
        remaining = [(p.topic_name, p.partition_index) for p in answer.remaining_partitions]
        assert (answer.error_code, remaining) == (0, [("t", 0), ("t", 1)])
        request = m.ControlledShutdownRequest(broker_id=3, broker_epoch=epoch - 1)
        answer = await member.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, request)
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
        allocate = m.AllocateProducerIdsRequest(broker_id=3, broker_epoch=epoch)
        answer = await member.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, allocate)
        assert (answer.producer_id_start, answer.producer_id_len) == (0, 1000)


@in_loop
async def test_feature_levels_change_at_the_controller_if_all_brokers_support_them():
    async with a_member() as (_, member):
        await member.lead()
        down = FeatureUpdate(TRANSACTION_VERSION, 0, 2)
        await member.controller.update_features([down], validate_only=True)
        found = await member.registry.watched.features()
        assert (found.levels[TRANSACTION_VERSION], found.epoch) == (2, 0)
        await member.controller.update_features([down])
        found = await member.registry.watched.features()
        assert (found.levels[TRANSACTION_VERSION], found.epoch) == (0, 1)


@in_loop
async def test_a_member_whose_term_has_ended_is_not_the_controller():
    async with a_member() as (cluster, member):
        await member.lead()
        (answer,) = await member.controller.create_topics([NewTopic("t", 1, 1)])
        assert not isinstance(answer, Rejected)
        cluster.tree.expire(member.session.session_id)
        (answer,) = await member.controller.create_topics([NewTopic("u", 1, 1)])
        assert answer.code == ErrorCode.NOT_CONTROLLER
        assert member.fenced == [True]
        member.controller.settings_changed()


@in_loop
async def test_a_topic_that_allows_unclean_elections_gets_a_leader_at_once():
    async with a_member() as (cluster, member):
        await member.lead()
        await member.controller.create_topics([NewTopic("t", assignments=[(0, (3, 2))])])
        cluster.crash(2)
        await until(lambda: cluster.brokers[1].topics["t"][0].isr == [3])
        cluster.crash(3)
        await until(lambda: cluster.brokers[1].leader_of("t") == -1)
        await cluster.register(2)
        await until(lambda: cluster.brokers[1].live_brokers == [1, 2])
        assert cluster.brokers[1].leader_of("t") == -1
        member.metadata_cache.current = cluster.controllers[0].metadata
        overrides = {"unclean.leader.election.enable": "true"}
        await member.controller.alter_configs(ResourceType.TOPIC, "t", overrides)
        await until(lambda: cluster.brokers[1].leader_of("t") == 2)
