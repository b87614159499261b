"""Settings of groups and transactions: each one changes what a client is answered."""

import time
from contextlib import contextmanager

import pytest

from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import AlterOperation, ResourceType
from headrace.records.batch import CODEC_NAMES, headers
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.groups import Groups
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

OK = ErrorCode.NONE
GROUP, TRANSACTION = 0, 1  # types of coordinators
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"  # to topic t


class GroupClient(RawClient):
    def find(self, key, kind=GROUP):
        request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        return self.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators[0].error_code

    def join(self, group, *, session_ms=10_000, member_id=""):
        """The answer to a classic member, once it has the member id that it needs."""
        answer = self.ask(
            ApiKey.JOIN_GROUP,
            9,
            m.JoinGroupRequest(
                group_id=group,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=10_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[
                    m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
                ],
            ),
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(group, session_ms=session_ms, member_id=answer.member_id)
        return answer

    def beat(self, group, member_id, epoch=0, **fields):
        """A heartbeat of the consumer protocol; epoch 0 joins."""
        joining = {
            "subscribed_topic_names": ["t"],
            "rebalance_timeout_ms": 10_000,
            "topic_partitions": [],
        }
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            **{**(joining if epoch == 0 else {}), **fields},
        )
        return self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)

    def members(self, group):
        request = m.ConsumerGroupDescribeRequest(group_ids=[group])
        return self.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups[0].members

    def commit(self, group, metadata=""):
        request = m.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=metadata
        )
        topic = request.OffsetCommitRequestTopic(name="t", partitions=[partition])
        answer = self.ask(ApiKey.OFFSET_COMMIT, 8, request(group_id=group, topics=[topic]))
        return answer.topics[0].partitions[0].error_code

    def set_on_group(self, group, **settings):
        alter = m.IncrementalAlterConfigsRequest
        configs = [
            alter.AlterableConfig(
                name=name.replace("_", "."), config_operation=AlterOperation.SET, value=value
            )
            for name, value in settings.items()
        ]
        resource = alter.AlterConfigsResource(
            resource_type=ResourceType.GROUP, resource_name=group, configs=configs
        )
        answer = self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, alter(resources=[resource]))
        return answer.responses[0].error_code

    def settings_of(self, topic):
        describe = m.DescribeConfigsRequest
        resource = describe.DescribeConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=None
        )
        answer = self.ask(ApiKey.DESCRIBE_CONFIGS, 4, describe(resources=[resource]))
        return {entry.name: entry.value for entry in answer.results[0].configs}

    def partition_count(self, topic):
        return len(self.metadata(topic).topics[0].partitions)


@contextmanager
def a_client(**options):
    """A client of a broker of its own, whose group coordinator is ready."""
    with (
        Broker(topics={"t": 2}, **options) as broker,
        GroupClient(broker.bootstrap_servers) as client,
    ):
        wait_until(lambda: client.find("g") == OK)
        wait_until(lambda: client.commit("ready") == OK)
        yield client


# --- classic groups


def test_classic_groups_keep_within_the_limits_of_the_broker():
    config = {
        "group.min.session.timeout.ms": 5_000,
        "group.max.session.timeout.ms": 20_000,
        "group.max.size": 1,
        "offset.metadata.max.bytes": 10,
    }
    with a_client(config=config) as client:
        for session_ms in (4_999, 20_001):
            answer = client.join("g", session_ms=session_ms)
            assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert client.join("g", session_ms=5_000).error_code == OK
        assert client.join("g").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert client.commit("h", "ten bytes.") == OK
        assert client.commit("h", "ten bytes..") == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_new_classic_group_waits_for_more_members():
    with a_client(config={"group.initial.rebalance.delay.ms": 300}) as client:
        started = time.monotonic()
        assert client.join("g").error_code == OK
        assert time.monotonic() - started >= 0.3


def test_offsets_expire_at_the_next_check():
    def expires_after(**settings):
        groups = Groups(offsets_retention_minutes=1, **settings)
        groups.commit({0: 5})
        start = groups.now
        while groups.offsets():
            groups.pass_time(1_000)
        return groups.now - start

    assert 60_000 <= expires_after(offsets_retention_check_interval_ms=1_000) <= 62_000
    assert expires_after(offsets_retention_check_interval_ms=100_000) == 100_000
    assert expires_after() == 600_000, "the default interval"


# --- the consumer protocol


@pytest.mark.parametrize("whose", ["broker", "group"])
def test_intervals_of_the_consumer_protocol_are_those_of_the_broker_or_the_group(whose):
    limits = {
        "group.consumer.min.session.timeout.ms": 400,
        "group.consumer.min.heartbeat.interval.ms": 100,
    }
    of_broker = {
        "group.consumer.heartbeat.interval.ms": 321,
        "group.consumer.session.timeout.ms": 500,
        "group.consumer.assignment.interval.ms": 15_000,
    }
    with a_client(config=limits | (of_broker if whose == "broker" else {})) as client:
        if whose == "group":
            code = client.set_on_group(
                "g",
                consumer_heartbeat_interval_ms="321",
                consumer_session_timeout_ms="500",
                consumer_assignment_interval_ms="15000",
            )
            assert code == OK
        first = client.beat("g", "a")
        assert (first.error_code, first.heartbeat_interval_ms) == (OK, 321)
        assert [len(each.partitions) for each in first.assignment.topic_partitions] == [2]
        assert client.beat("g", "b").error_code == OK
        # The next assignment is due in 15 s, so the first member keeps everything until then.
        again = client.beat("g", "a", first.member_epoch)
        assert (again.error_code, again.assignment) == (OK, None)
        assert {member.member_id for member in client.members("g")} == {"a", "b"}
        wait_until(lambda: not client.members("g"))  # neither has sent another heartbeat


def test_the_consumer_protocol_has_the_limits_and_assignors_of_the_broker():
    config = {
        "group.consumer.max.size": 1,
        "group.consumer.assignors": "range",
        "group.consumer.migration.policy": "disabled",
    }
    with a_client(config=config) as client:
        answer = client.beat("g", "a", server_assignor="uniform")
        assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert client.beat("g", "a").error_code == OK
        assert client.beat("g", "b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert client.join("classic").error_code == OK
        assert client.beat("classic", "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_cannot_use_a_protocol_that_is_not_enabled():
    with a_client(config={"group.coordinator.rebalance.protocols": "classic"}) as client:
        assert client.beat("g", "a").error_code == ErrorCode.UNSUPPORTED_VERSION
        assert client.join("g").error_code == OK


# --- internal topics


def test_the_offsets_topic_has_the_shape_that_its_settings_give(tmp_path):
    gzip = CODEC_NAMES.index("gzip")
    config = {
        "offsets.topic.num.partitions": 2,
        "offsets.topic.segment.bytes": 2_000_000,
        "offsets.topic.compression.codec": gzip,
    }
    with a_client(config=config, data=tmp_path) as client:
        assert client.partition_count("__consumer_offsets") == 2
        assert client.settings_of("__consumer_offsets")["segment.bytes"] == "2000000"
    codecs = {
        header.codec
        for path in tmp_path.glob("__consumer_offsets-*/*.log")
        for _, header in headers(path.read_bytes())
    }
    assert codecs == {gzip}


def test_the_transactions_topic_has_the_shape_that_its_settings_give():
    config = {
        "transaction.state.log.num.partitions": 3,
        "transaction.state.log.segment.bytes": 3_000_000,
        "transaction.state.log.min.isr": 2,
        "transaction.max.timeout.ms": 5_000,
    }
    with a_client(config=config) as client:
        wait_until(lambda: client.find("tx", TRANSACTION) == OK)
        assert client.partition_count("__transaction_state") == 3
        settings = client.settings_of("__transaction_state")
        assert (settings["segment.bytes"], settings["min.insync.replicas"]) == ("3000000", "2")

        def init(timeout_ms):
            request = m.InitProducerIdRequest(
                transactional_id="tx", transaction_timeout_ms=timeout_ms
            )
            return client.ask(ApiKey.INIT_PRODUCER_ID, 4, request).error_code

        wait_until(lambda: init(5_000) == OK)
        assert init(5_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (GROUP, "offsets.topic.replication.factor"),
        (TRANSACTION, "transaction.state.log.replication.factor"),
    ],
)
def test_an_internal_topic_with_more_replicas_than_brokers_cannot_be_created(kind, name):
    with Broker(config={name: 2}) as broker, GroupClient(broker.bootstrap_servers) as client:
        assert client.find("key", kind) == ErrorCode.COORDINATOR_NOT_AVAILABLE
