"""APIs about the cluster, and APIs that are disabled or rarely needed, as in Kafka 4.3."""

import pytest

from headrace.broker.context import Context
from headrace.broker.handlers.cluster import api_versions
from headrace.broker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from headrace.core import features
from headrace.core.features import METADATA_VERSION
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import LevelRange
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey
from tests.fakes.standin import in_loop, running


def versions(api_key: ApiKey) -> range:
    first, last = SERVED[api_key]
    return range(first, last + 1)


# --- ApiVersions


@pytest.mark.parametrize("api_version", versions(ApiKey.API_VERSIONS))
@in_loop
async def test_every_version_announces_the_supported_apis(tmp_path, api_version):
    async with running(tmp_path) as broker:
        answer = await broker.ask(
            ApiKey.API_VERSIONS,
            api_version,
            client_software_name="test-client",
            client_software_version="1.0.0",
        )
        assert answer.error_code == 0
        announced = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert announced == SERVED
        if api_version >= 3:
            assert answer.finalized_features_epoch == 0
            finalized = {f.name: f.max_version_level for f in answer.finalized_features}
            assert finalized == features.INITIAL_LEVELS
            supported = {f.name: (f.min_version, f.max_version) for f in answer.supported_features}
            assert supported == {
                name: levels
                for name, levels in features.SUPPORTED.items()
                if levels.lowest > 0 or api_version > 3
            }
            assert supported[METADATA_VERSION] == (7, 30)


@in_loop
async def test_old_clients_do_not_get_features_with_minimum_level_0(tmp_path, monkeypatch):
    supported = {**features.SUPPORTED, "group.version": LevelRange(0, 1)}
    monkeypatch.setattr(features, "SUPPORTED", supported)
    async with running(tmp_path) as broker:
        for api_version, names in [(3, {METADATA_VERSION}), (4, set(supported))]:
            answer = await broker.ask(
                ApiKey.API_VERSIONS,
                api_version,
                client_software_name="a",
                client_software_version="1",
            )
            assert {feature.name for feature in answer.supported_features} == names


@pytest.mark.parametrize(
    ("name", "version", "code"),
    [
        ("librdkafka", "2.16.1", 0),
        ("x" * 300, "1", 0),
        ("", "1", ErrorCode.INVALID_REQUEST),
        ("a b", "1", ErrorCode.INVALID_REQUEST),
        ("-a", "1", ErrorCode.INVALID_REQUEST),
        ("a", "1.", ErrorCode.INVALID_REQUEST),
        ("a\n", "1", ErrorCode.INVALID_REQUEST),
    ],
)
@in_loop
async def test_the_name_of_a_clients_software_must_be_valid(tmp_path, name, version, code):
    async with running(tmp_path) as broker:
        answer = await broker.ask(
            ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version=version
        )
        assert answer.error_code == code
        assert bool(answer.api_keys) == (code == 0)


def test_an_unknown_version_is_answered_with_the_versions_of_this_api_only():
    context = Context(ApiKey.API_VERSIONS, 0, 1, None, "PLAINTEXT", "")
    answer = api_versions(None, context, None)  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(a.api_key, a.min_version, a.max_version) for a in answer.api_keys] == [(18, 0, 4)]


# --- DescribeCluster


@pytest.mark.parametrize("api_version", versions(ApiKey.DESCRIBE_CLUSTER))
@in_loop
async def test_every_version_describes_the_cluster(tmp_path, api_version):
    async with running(tmp_path, {"broker.rack": "r"}) as broker:
        answer = await broker.ask(
            ApiKey.DESCRIBE_CLUSTER, api_version, include_cluster_authorized_operations=True
        )
        assert (answer.error_code, answer.error_message) == (0, None)
        assert (answer.cluster_id, answer.controller_id) == (broker.metadata.cluster_id, 1)
        assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
            (1, "127.0.0.1", 9092, "r")
        ]
        assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
        silent = await broker.ask(ApiKey.DESCRIBE_CLUSTER, api_version)
        assert silent.cluster_authorized_operations == NOT_ASKED


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
@in_loop
async def test_other_endpoint_types_are_refused(tmp_path, endpoint_type, code):
    async with running(tmp_path) as broker:
        with pytest.raises(Rejected) as refused:
            await broker.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
        assert refused.value.code == code


# --- FindCoordinator


@pytest.mark.parametrize("api_version", versions(ApiKey.FIND_COORDINATOR))
@in_loop
async def test_this_broker_is_the_coordinator_of_every_key(tmp_path, api_version):
    async with running(tmp_path) as broker:
        keys = {"coordinator_keys": ["g"]} if api_version >= 4 else {"key": "g"}
        answer = await broker.ask(ApiKey.FIND_COORDINATOR, api_version, **keys)
        found = answer.coordinators[0] if api_version >= 4 else answer
        assert (found.error_code, found.node_id, found.host, found.port) == (
            0,
            1,
            "127.0.0.1",
            9092,
        )


@in_loop
async def test_an_unknown_coordinator_type_is_refused_per_key(tmp_path):
    async with running(tmp_path) as broker:
        answer = await broker.ask(
            ApiKey.FIND_COORDINATOR, 6, key_type=9, coordinator_keys=["a", "b"]
        )
        assert [(c.key, c.error_code, c.node_id) for c in answer.coordinators] == [
            ("a", ErrorCode.INVALID_REQUEST, -1),
            ("b", ErrorCode.INVALID_REQUEST, -1),
        ]
        share = await broker.ask(
            ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=["no-topic-and-partition"]
        )
        assert share.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_the_log_says_once_why_there_is_no_coordinator(tmp_path, caplog):
    async with running(tmp_path, {"offsets.topic.replication.factor": "3"}) as broker:
        for _ in range(5):
            answer = await broker.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["g"])
            (coordinator,) = answer.coordinators
            assert coordinator.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (line,) = [r.getMessage() for r in caplog.records if "__consumer_offsets" in r.getMessage()]
    assert "coordinators are not available" in line
    assert "replication factor" in line.lower()


# --- UpdateFeatures


@pytest.mark.parametrize("api_version", versions(ApiKey.UPDATE_FEATURES))
@in_loop
async def test_every_version_updates_features(tmp_path, api_version):
    async with running(tmp_path) as broker:
        update = m.UpdateFeaturesRequest.FeatureUpdateKey
        stay = update(feature=METADATA_VERSION, max_version_level=30, upgrade_type=1)
        answer = await broker.ask(ApiKey.UPDATE_FEATURES, api_version, feature_updates=[stay])
        assert (answer.error_code, answer.error_message) == (0, None)
        back = update(
            feature=METADATA_VERSION, max_version_level=20, upgrade_type=2, allow_downgrade=True
        )
        with pytest.raises(Rejected) as refused:
            await broker.ask(ApiKey.UPDATE_FEATURES, api_version, feature_updates=[back])
        assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION


# --- leaders and reassignments


@pytest.mark.parametrize("api_version", versions(ApiKey.ELECT_LEADERS))
@in_loop
async def test_on_one_node_no_election_is_needed(tmp_path, api_version):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t", 2)])
        wanted = m.ElectLeadersRequest.TopicPartitions
        answer = await broker.ask(
            ApiKey.ELECT_LEADERS,
            api_version,
            topic_partitions=[
                wanted(topic="t", partitions=[0, 1, 7]),
                wanted(topic="no", partitions=[0]),
            ],
        )
        assert {
            (r.topic, p.partition_id): p.error_code
            for r in answer.replica_election_results
            for p in r.partition_result
        } == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        everywhere = await broker.ask(ApiKey.ELECT_LEADERS, api_version, topic_partitions=None)
        assert [(r.topic, r.partition_result) for r in everywhere.replica_election_results] == [
            ("t", [])
        ]


@in_loop
async def test_an_unknown_election_type_is_an_invalid_request(tmp_path):
    async with running(tmp_path) as broker:
        with pytest.raises(Rejected) as refused:
            await broker.ask(ApiKey.ELECT_LEADERS, 2, election_type=9, topic_partitions=[])
        assert refused.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("api_version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
@in_loop
async def test_on_one_node_a_partition_can_only_be_reassigned_to_its_current_replicas(
    tmp_path, api_version
):
    async with running(tmp_path) as broker:
        await broker.controller.create_topics([NewTopic("t")])
        request = m.AlterPartitionReassignmentsRequest

        async def reassign(partition, replicas):
            answer = await broker.ask(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                api_version,
                topics=[
                    request.ReassignableTopic(
                        name="t",
                        partitions=[
                            request.ReassignablePartition(
                                partition_index=partition, replicas=replicas
                            )
                        ],
                    )
                ],
            )
            assert (answer.error_code, answer.error_message) == (0, None)
            return answer.responses[0].partitions[0].error_code

        assert await reassign(0, [1]) == 0
        assert await reassign(0, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await reassign(0, [2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await reassign(0, []) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await reassign(5, [1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        listed = await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
        assert (listed.error_code, listed.topics) == (0, [])


# --- disabled APIs


@in_loop
async def test_without_an_authorizer_acls_are_disabled(tmp_path):
    async with running(tmp_path) as broker:
        with pytest.raises(Rejected) as refused:
            await broker.ask(ApiKey.DESCRIBE_ACLS, 3, resource_type_filter=1)
        assert refused.value.code == ErrorCode.SECURITY_DISABLED
        created = await broker.ask(
            ApiKey.CREATE_ACLS, 3, creations=[m.CreateAclsRequest.AclCreation()] * 2
        )
        assert [r.error_code for r in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
        deleted = await broker.ask(
            ApiKey.DELETE_ACLS, 3, filters=[m.DeleteAclsRequest.DeleteAclsFilter()] * 2
        )
        assert [r.error_code for r in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED] * 2


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ],
)
@in_loop
async def test_an_unauthenticated_client_cannot_get_tokens(tmp_path, api_key):
    async with running(tmp_path) as broker:
        with pytest.raises(Rejected) as refused:
            await broker.ask(api_key, SERVED[api_key][1])
        assert refused.value.code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize("api_key", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
@in_loop
async def test_a_client_that_sends_a_password_gets_an_error(tmp_path, api_key):
    async with running(tmp_path) as broker:
        with pytest.raises(Rejected) as refused:
            await broker.ask(api_key, SERVED[api_key][1])
        assert refused.value.code == ErrorCode.ILLEGAL_SASL_STATE
