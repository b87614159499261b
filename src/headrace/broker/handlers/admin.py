"""Elections, reassignments, ACLs, delegation tokens, SASL.

The controller handles elections and reassignments. Requests about ACLs, tokens and SASL get the
error that Kafka sends where these are disabled.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsController, NeedsMetadata
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition
from headrace.wire import messages as m

_PREFERRED, _UNCLEAN = 0, 1

_NO_AUTHORIZER = "No authorizer is configured on this broker."


class Needs(NeedsController, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


async def elect_leaders(
    broker: Needs, context: Context, request: m.ElectLeadersRequest
) -> m.ElectLeadersResponse:
    response = m.ElectLeadersResponse
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise Rejected(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}.")
    everywhere = request.topic_partitions is None
    wanted: Sequence[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = [(t.name, range(len(t.partitions))) for t in broker.metadata.topics.values()]
    else:
        wanted = [(entry.topic, entry.partitions) for entry in request.topic_partitions]
    asked = [
        TopicPartition(topic, partition)
        for topic, partitions in wanted
        for partition in dict.fromkeys(partitions)
    ]
    refusals = await broker.controller.elect_leaders(
        asked, unclean=request.election_type == _UNCLEAN
    )
    results = {
        topic: response.ReplicaElectionResult(topic=topic, partition_result=[])
        for topic, _ in wanted
    }
    for (topic, partition), refusal in zip(asked, refusals, strict=True):
        if everywhere and refusal and refusal.code == ErrorCode.ELECTION_NOT_NEEDED:
            # A request for all partitions gets only those with an election.
            continue
        results[topic].partition_result.append(
            response.PartitionResult(
                partition_id=partition,
                error_code=refusal.code if refusal else ErrorCode.NONE,
                error_message=str(refusal) if refusal else None,
            )
        )
    return response(replica_election_results=list(results.values()))


async def alter_partition_reassignments(
    broker: Needs, context: Context, request: m.AlterPartitionReassignmentsRequest
) -> m.AlterPartitionReassignmentsResponse:
    response = m.AlterPartitionReassignmentsResponse
    refusals = await broker.controller.reassign(
        {
            TopicPartition(topic.name, wanted.partition_index): (
                None if wanted.replicas is None else [BrokerId(each) for each in wanted.replicas]
            )
            for topic in request.topics
            for wanted in topic.partitions
        },
        may_change_factor=request.allow_replication_factor_change,
    )
    responses = []
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            refusal = refusals[TopicPartition(topic.name, wanted.partition_index)]
            answers.append(
                response.ReassignablePartitionResponse(
                    partition_index=wanted.partition_index,
                    error_code=refusal.code if refusal else ErrorCode.NONE,
                    error_message=refusal.message if refusal else None,
                )
            )
        responses.append(response.ReassignableTopicResponse(name=topic.name, partitions=answers))
    return response(
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=responses,
    )


def list_partition_reassignments(
    broker: Needs, context: Context, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    response = m.ListPartitionReassignmentsResponse
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.name, partition)
            for topic in request.topics
            for partition in topic.partition_indexes
        }
    topics: dict[str, m.ListPartitionReassignmentsResponse.OngoingTopicReassignment] = {}
    for state in broker.controller.reassignments():
        if wanted is not None and state.topic_partition not in wanted:
            continue
        topic = topics.setdefault(
            state.topic, response.OngoingTopicReassignment(name=state.topic, partitions=[])
        )
        topic.partitions.append(
            response.OngoingPartitionReassignment(
                partition_index=state.partition,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding),
                removing_replicas=list(state.removing),
            )
        )
    return response(error_message=None, topics=list(topics.values()))


def describe_acls(
    broker: Needs, context: Context, request: m.DescribeAclsRequest
) -> m.DescribeAclsResponse:
    raise Rejected(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)


def create_acls(
    broker: Needs, context: Context, request: m.CreateAclsRequest
) -> m.CreateAclsResponse:
    response = m.CreateAclsResponse
    return response(
        results=[
            response.AclCreationResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
            )
            for _ in request.creations
        ]
    )


def delete_acls(
    broker: Needs, context: Context, request: m.DeleteAclsRequest
) -> m.DeleteAclsResponse:
    response = m.DeleteAclsResponse
    return response(
        filter_results=[
            response.DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
            )
            for _ in request.filters
        ]
    )


def create_delegation_token(
    broker: Needs, context: Context, request: m.CreateDelegationTokenRequest
) -> m.CreateDelegationTokenResponse:
    raise Rejected(_tokens_refused())


def renew_delegation_token(
    broker: Needs, context: Context, request: m.RenewDelegationTokenRequest
) -> m.RenewDelegationTokenResponse:
    raise Rejected(_tokens_refused())


def expire_delegation_token(
    broker: Needs, context: Context, request: m.ExpireDelegationTokenRequest
) -> m.ExpireDelegationTokenResponse:
    raise Rejected(_tokens_refused())


def describe_delegation_token(
    broker: Needs, context: Context, request: m.DescribeDelegationTokenRequest
) -> m.DescribeDelegationTokenResponse:
    raise Rejected(_tokens_refused())


def _tokens_refused() -> ErrorCode:
    """Kafka's error for a client that has not authenticated.

    Only authenticated clients would get DELEGATION_TOKEN_AUTH_DISABLED, and no client can
    authenticate here.
    """
    return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def sasl_handshake(
    broker: Needs, context: Context, request: m.SaslHandshakeRequest
) -> m.SaslHandshakeResponse:
    raise Rejected(_sasl_refused())


def sasl_authenticate(
    broker: Needs, context: Context, request: m.SaslAuthenticateRequest
) -> m.SaslAuthenticateResponse:
    raise Rejected(_sasl_refused(), "This listener does not use SASL.")


def _sasl_refused() -> ErrorCode:
    """Kafka's error on a listener without SASL.

    The API is announced, so that a misconfigured client gets this error. Otherwise some clients
    would be disconnected without a message, and others would report an old broker.
    """
    return ErrorCode.ILLEGAL_SASL_STATE
