"""Groups over the wire, in every version that is announced, and what bad requests get."""

import itertools

import pytest

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey
from tests.fakes.groups import subscription
from tests.fakes.raw_client import RawClient

OK = ErrorCode.NONE
_numbers = itertools.count(1)


def versions(api_key):
    first, last = SERVED[api_key]
    return range(first, last + 1)


@pytest.fixture
def client(headrace_broker):
    with RawClient(headrace_broker.bootstrap_servers) as raw:
        raw.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key="g"))
        yield raw


@pytest.fixture
def group():
    return f"wire-{next(_numbers)}"


def a_join(group, member_id="", topic="t", **more):
    fields = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [
            m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(topic))
        ],
    }
    return m.JoinGroupRequest(**(fields | more))


def join(client, group, version=9, **more):
    answer = client.ask(ApiKey.JOIN_GROUP, version, a_join(group, **more))
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        request = a_join(group, answer.member_id, **more)
        answer = client.ask(ApiKey.JOIN_GROUP, version, request)
    assert answer.error_code == OK
    return answer


def sync(client, group, member_id, generation, assignment=b"", version=5):
    return client.ask(
        ApiKey.SYNC_GROUP,
        version,
        m.SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                m.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=assignment
                )
            ],
        ),
    )


def a_commit(group, topic, offset=5, partition=0, topic_id=None, **more):
    request = m.OffsetCommitRequest
    return request(
        group_id=group,
        topics=[
            request.OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id or bytes(16),
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata=more.pop("metadata", ""),
                    )
                ],
            )
        ],
        **more,
    )


def commit(client, *arguments, version=8, **more):
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, a_commit(*arguments, **more))
    return answer.topics[0].partitions[0].error_code


def fetch(client, group, topic, version=8, topic_id=None, partitions=(0,)):
    request = m.OffsetFetchRequest
    message = request(
        group_id=group,
        topics=[request.OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))],
        groups=[
            request.OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    request.OffsetFetchRequestTopics(
                        name=topic,
                        topic_id=topic_id or bytes(16),
                        partition_indexes=list(partitions),
                    )
                ],
            )
        ],
    )
    answer = client.ask(ApiKey.OFFSET_FETCH, version, message)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    return [(x.committed_offset, x.error_code) for x in topics[0].partitions]


def topic_id_of(client, topic):
    return client.metadata(topic).topics[0].topic_id


# Every version.


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_group_forms_in_every_version_of_join(client, group, version):
    answer = join(client, group, version)
    assert answer.generation_id == 1 and answer.protocol_name == "range"
    assert answer.leader == answer.member_id and len(answer.members) == 1
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert sync(client, group, answer.member_id, 1, b"mine").assignment == b"mine"


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_refused_join_has_the_shape_of_its_version(client, group, version):
    answer = client.ask(ApiKey.JOIN_GROUP, version, a_join(group, "stranger"))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.member_id == "stranger" and answer.generation_id == -1
    assert answer.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_a_member_gets_its_assignment_in_every_version_of_sync(client, group, version):
    member_id = join(client, group).member_id
    answer = sync(client, group, member_id, 1, b"mine", version)
    assert answer.error_code == OK and answer.assignment == b"mine"
    assert answer.protocol_name == ("range" if version >= 5 else None)


def test_a_sync_must_name_the_protocol_from_version_5_on(client, group):
    member_id = join(client, group).member_id
    request = m.SyncGroupRequest(group_id=group, generation_id=1, member_id=member_id)
    answer = client.ask(ApiKey.SYNC_GROUP, 5, request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.ask(ApiKey.SYNC_GROUP, 4, request).error_code == OK


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_a_member_beats_in_every_version(client, group, version):
    member_id = join(client, group).member_id
    sync(client, group, member_id, 1)
    request = m.HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id)
    assert client.ask(ApiKey.HEARTBEAT, version, request).error_code == OK
    request.generation_id = 2
    answer = client.ask(ApiKey.HEARTBEAT, version, request)
    assert answer.error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_a_member_leaves_in_every_version(client, group, version):
    member_id = join(client, group).member_id
    sync(client, group, member_id, 1)

    def leave(member_id):
        answer = client.ask(
            ApiKey.LEAVE_GROUP,
            version,
            m.LeaveGroupRequest(
                group_id=group,
                member_id=member_id,
                members=[m.LeaveGroupRequest.MemberIdentity(member_id=member_id)],
            ),
        )
        return answer.members[0].error_code if version >= 3 else answer.error_code

    assert leave("stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave(member_id) == OK
    assert leave(member_id) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_offsets_are_committed_in_every_version(client, group, headrace_topic, version):
    topic_id = topic_id_of(client, headrace_topic)
    code = commit(client, group, headrace_topic, 77, version=version, topic_id=topic_id)
    assert code == OK
    assert fetch(client, group, headrace_topic) == [(77, OK)]
    wrong_id = bytes(15) + b"\1"
    code = commit(client, group, "no-such", version=version, topic_id=wrong_id)
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
    assert code == expected


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offsets_are_fetched_in_every_version(client, group, headrace_topic, version):
    topic_id = topic_id_of(client, headrace_topic)
    commit(client, group, headrace_topic, 42)
    found = fetch(client, group, headrace_topic, version, topic_id, partitions=(0, 9))
    assert found == [(42, OK), (-1, OK)]
    nobody = fetch(client, "nobody", headrace_topic, version, topic_id)
    assert nobody == [(-1, OK)]


@pytest.mark.parametrize("version", range(2, 8))
def test_all_offsets_of_one_group_are_fetched(client, group, headrace_topic, version):
    commit(client, group, headrace_topic, 42)
    answer = client.ask(
        ApiKey.OFFSET_FETCH, version, m.OffsetFetchRequest(group_id=group, topics=None)
    )
    assert [(t.name, t.partitions[0].committed_offset) for t in answer.topics] == [
        (headrace_topic, 42)
    ]


def test_offsets_of_many_groups_are_fetched_at_once(client, group, headrace_topic):
    names = [f"{group}-{number}" for number in range(20)]
    for number, name in enumerate(names):
        commit(client, name, headrace_topic, number)
    request = m.OffsetFetchRequest
    answer = client.ask(
        ApiKey.OFFSET_FETCH,
        9,
        request(
            groups=[
                request.OffsetFetchRequestGroup(group_id=name, topics=None)
                for name in [*names, "nobody"]
            ]
        ),
    )
    assert [x.group_id for x in answer.groups] == [*names, "nobody"]
    assert [x.topics[0].partitions[0].committed_offset for x in answer.groups[:-1]] == list(
        range(20)
    )
    assert answer.groups[-1].topics == [] and answer.groups[-1].error_code == OK


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described_in_every_version(client, group, version):
    member_id = join(client, group).member_id
    sync(client, group, member_id, 1, b"mine")
    answer = client.ask(
        ApiKey.DESCRIBE_GROUPS,
        version,
        m.DescribeGroupsRequest(groups=[group, "nobody"], include_authorized_operations=True),
    )
    found, missing = answer.groups
    assert found.group_state == "Stable" and found.protocol_data == "range"
    assert found.members[0].member_assignment == b"mine"
    assert found.members[0].client_id == "raw" and found.members[0].client_host == "/127.0.0.1"
    assert missing.group_state == "Dead"
    assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else OK)
    assert (found.authorized_operations == 3400) == (version >= 3)
    # Up to version 5 a missing group is described like one that is dead; later it is an error.
    assert (missing.authorized_operations == 3400) == (3 <= version < 6)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed_in_every_version(client, group, headrace_topic, version):
    commit(client, group, headrace_topic)
    answer = client.ask(
        ApiKey.LIST_GROUPS,
        version,
        m.ListGroupsRequest(states_filter=["EMPTY"], types_filter=["Classic"]),
    )
    (found,) = [x for x in answer.groups if x.group_id == group]
    assert found.group_state == ("Empty" if version >= 4 else "")
    assert found.group_type == ("classic" if version >= 5 else "")
    if version >= 4:
        request = m.ListGroupsRequest(states_filter=["Stable"])
        answer = client.ask(ApiKey.LIST_GROUPS, version, request)
        assert group not in [x.group_id for x in answer.groups]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_are_deleted_in_every_version(client, group, headrace_topic, version):
    busy = join(client, f"{group}-busy")
    commit(client, group, headrace_topic)
    names = [group, group, "nobody", f"{group}-busy"]
    answer = client.ask(ApiKey.DELETE_GROUPS, version, m.DeleteGroupsRequest(groups_names=names))
    assert {x.group_id: x.error_code for x in answer.results} == {
        group: OK,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
        f"{group}-busy": ErrorCode.NON_EMPTY_GROUP,
    }
    assert fetch(client, group, headrace_topic) == [(-1, OK)]
    assert busy.generation_id == 1


def delete_offsets(client, group, topic, *partitions):
    request = m.OffsetDeleteRequest
    return client.ask(
        ApiKey.OFFSET_DELETE,
        0,
        request(
            group_id=group,
            topics=[
                request.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        request.OffsetDeleteRequestPartition(partition_index=number)
                        for number in partitions
                    ],
                )
            ],
        ),
    )


def test_offsets_are_deleted(client, group, headrace_topic):
    commit(client, group, headrace_topic)
    answer = delete_offsets(client, group, headrace_topic, 0, 9)
    assert [x.error_code for x in answer.topics[0].partitions] == [
        OK,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert fetch(client, group, headrace_topic) == [(-1, OK)]
    missing = delete_offsets(client, "nobody", headrace_topic, 0)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    unnamed = delete_offsets(client, "", headrace_topic, 0)
    assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID


# Finding the coordinator.


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
@pytest.mark.parametrize("kind", [0, 1])
def test_the_coordinator_is_found_in_every_version(client, version, kind):
    if kind and not version:
        return  # version 0 only knows groups
    answer = client.ask(
        ApiKey.FIND_COORDINATOR,
        version,
        m.FindCoordinatorRequest(key="a", key_type=kind, coordinator_keys=["a", "b", ""]),
    )
    found = answer.coordinators if version >= 4 else [answer]
    assert {(x.error_code, x.node_id) for x in found} == {(OK, 1)}
    assert len(found) == (3 if version >= 4 else 1)


@pytest.mark.parametrize(("kind", "key"), [(2, "g"), (2, "g:not-an-id:0"), (9, "g")])
def test_a_coordinator_of_no_kind_is_an_invalid_request(client, kind, key):
    request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key], key=key)
    (found,) = client.ask(ApiKey.FIND_COORDINATOR, 6, request).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST and found.node_id == -1


# Bad input.


def test_an_empty_group_id_is_refused_where_there_must_be_one(client):
    request = m.LeaveGroupRequest.MemberIdentity
    for api_key, version, message in (
        (ApiKey.JOIN_GROUP, 9, a_join("")),
        (ApiKey.SYNC_GROUP, 4, m.SyncGroupRequest(member_id="m", generation_id=1)),
        (ApiKey.HEARTBEAT, 4, m.HeartbeatRequest(member_id="m", generation_id=1)),
        (ApiKey.LEAVE_GROUP, 5, m.LeaveGroupRequest(members=[request(member_id="m")])),
    ):
        answer = client.ask(api_key, version, message)
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID, api_key


def test_offsets_can_be_kept_under_the_empty_group_id_as_kafka_0_8_did(client, headrace_topic):
    assert commit(client, "", headrace_topic, 3) == OK
    assert fetch(client, "", headrace_topic) == [(3, OK)]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_clients_write_nothing_into_the_topic_of_the_groups_and_delete_nothing(
    client, group, headrace_topic, version
):
    record = Record(0, 1_700_000_000_000, b"no key of a group", b"x", ())
    assert commit(client, group, headrace_topic) == OK
    topic = "__consumer_offsets"
    if version >= 13:
        topic = client.metadata(topic).topics[0].topic_id
    told = client.produce(topic, build_batch([record]), version=version)
    assert (told.error_code, told.base_offset) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    request = m.DeleteRecordsRequest
    asked = request.DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [request.DeleteRecordsTopic(name="__consumer_offsets", partitions=[asked])]
    answer = client.ask(ApiKey.DELETE_RECORDS, 2, request(topics=topics, timeout_ms=10_000))
    (told,) = answer.topics[0].partitions
    assert told.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_group_id_of_ten_thousand_letters_works(client, headrace_topic):
    group = "g" * 10_000
    member_id = join(client, group).member_id
    sync(client, group, member_id, 1)
    code = commit(
        client, group, headrace_topic, 3, generation_id_or_member_epoch=1, member_id=member_id
    )
    assert code == OK and fetch(client, group, headrace_topic) == [(3, OK)]


def test_a_group_id_that_no_record_could_hold_is_refused(client, headrace_topic):
    group = "g" * 40_000
    code = commit(client, group, headrace_topic, 3)
    assert code == ErrorCode.INVALID_GROUP_ID
    answer = client.ask(ApiKey.JOIN_GROUP, 9, a_join(group))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 2, ErrorCode.ILLEGAL_GENERATION),
        (None, 0, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_commits_of_members_that_lie_change_nothing(
    client, group, headrace_topic, member_id, generation, code
):
    mine = join(client, group).member_id
    sync(client, group, mine, 1)
    given = mine if member_id is None else member_id
    found = commit(
        client, group, headrace_topic, generation_id_or_member_epoch=generation, member_id=given
    )
    assert found == code
    assert fetch(client, group, headrace_topic) == [(-1, OK)]


def test_metadata_longer_than_the_limit_is_refused(client, group, headrace_topic):
    assert commit(client, group, headrace_topic, metadata="m" * 4096) == OK
    code = commit(client, group, headrace_topic, 9, metadata="m" * 4097)
    assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert fetch(client, group, headrace_topic) == [(5, OK)]


def test_a_group_too_large_for_its_record_harms_nobody_else(client, group, headrace_topic):
    """The record would not fit into a batch; the group does not form, all others go on."""
    big = [m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x" * 2_000_000)]
    member_id = join(client, group, protocols=big).member_id
    answer = sync(client, group, member_id, 1, b"mine")
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert commit(client, f"{group}-other", headrace_topic) == OK
    described = client.ask(ApiKey.DESCRIBE_GROUPS, 5, m.DescribeGroupsRequest(groups=[group]))
    assert described.groups[0].group_state == "CompletingRebalance"


def test_offsets_that_do_not_fit_into_one_batch_are_refused(group):
    with (
        Broker(config={"message.max.bytes": 2_000}, topics={"t": 50}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=group))
        request = a_commit(group, "t")
        partition_class = m.OffsetCommitRequest.OffsetCommitRequestPartition
        request.topics[0].partitions = [
            partition_class(partition_index=number, committed_offset=1, committed_metadata="")
            for number in range(50)
        ]
        answer = client.ask(ApiKey.OFFSET_COMMIT, 8, request)
        assert {x.error_code for x in answer.topics[0].partitions} == {
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        }
        assert fetch(client, group, "t") == [(-1, OK)]


# What becomes of groups.


def test_a_silent_member_is_out_and_the_others_share(headrace_broker, client, group):
    silent = join(client, group, session_timeout_ms=300)
    sync(client, group, silent.member_id, 1)
    with RawClient(headrace_broker.bootstrap_servers) as other:
        # The answer comes when the silent one's session is over.
        answer = join(other, group)
        assert answer.generation_id == 2
        assert [x.member_id for x in answer.members] == [answer.member_id]


def test_requests_that_wait_are_answered_when_the_broker_stops(group):
    with Broker() as broker, RawClient(broker.bootstrap_servers) as first:
        first.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=group))
        leader = join(first, group, version=3)
        sync(first, group, leader.member_id, 1)
        with RawClient(broker.bootstrap_servers) as second:
            second.post(ApiKey.JOIN_GROUP, 3, a_join(group))
            # The leader is told to join again, so the other one is waiting.
            request = m.HeartbeatRequest(
                group_id=group, generation_id=1, member_id=leader.member_id
            )
            while first.ask(ApiKey.HEARTBEAT, 4, request).error_code == OK:
                pass
            broker.restart()
            answer = second.answer(ApiKey.JOIN_GROUP, 3)
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_offsets_are_deleted_with_their_topic_and_a_new_topic_of_that_name_has_none(group):
    with (
        Broker(topics=["t", "u"]) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=group))
        commit(client, group, "t", 5)
        commit(client, group, "u", 6)
        request = m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
        client.ask(ApiKey.DELETE_TOPICS, 5, request)
        broker.create_topics(["t"])
        assert fetch(client, group, "t") == [(-1, OK)]
        assert fetch(client, group, "u") == [(6, OK)]
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as again:
            _once_loaded(again, group)
            assert fetch(again, group, "t") == [(-1, OK)]
            assert fetch(again, group, "u") == [(6, OK)]


def test_deleting_the_offsets_topic_forgets_all_and_a_new_one_is_made(group):
    with Broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        client.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=group))
        commit(client, group, "t", 5)
        request = m.DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=5000)
        client.ask(ApiKey.DELETE_TOPICS, 5, request)
        assert commit(client, group, "t", 6) == ErrorCode.NOT_COORDINATOR
        client.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=group))
        assert fetch(client, group, "t") == [(-1, OK)]
        assert commit(client, group, "t", 7) == OK


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_groups_members_assignments_and_offsets_outlive_the_broker(group, how):
    with Broker(topics=["t"]) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.ask(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=group))
            member_id = join(client, group).member_id
            sync(client, group, member_id, 1, b"mine")
            commit(client, group, "t", 42, generation_id_or_member_epoch=1, member_id=member_id)
        if how == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            _once_loaded(client, group)
            request = m.HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id)
            assert client.ask(ApiKey.HEARTBEAT, 4, request).error_code == OK
            assert sync(client, group, member_id, 1).assignment == b"mine"
            assert fetch(client, group, "t") == [(42, OK)]
            code = commit(
                client, group, "t", 43, generation_id_or_member_epoch=1, member_id=member_id
            )
            assert code == OK


def _once_loaded(client, group):
    request = m.ListGroupsRequest()
    while client.ask(ApiKey.LIST_GROUPS, 5, request).error_code != OK:
        pass
