"""A handler that refuses as a whole: the code reaches the client, whatever its version."""

import pytest

from headrace.broker.context import Context
from headrace.broker.error_responses import refused
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import commit, schema
from headrace.wire.api import SERVED, ApiKey, request_class
from tests.fakes.requests import carried, codes_in, filled

REFUSAL = Rejected(ErrorCode.POLICY_VIOLATION, "not today")
SERVED_APIS = [ApiKey(key) for key in sorted(SERVED)]
FIRST_PRODUCE = 3
# These versions say only what there is, and have no place for an error.
SPEECHLESS = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}


def versions_of(api_key):
    first, last = SERVED[api_key]
    return range(max(first, FIRST_PRODUCE) if api_key == ApiKey.PRODUCE else first, last + 1)


@pytest.mark.parametrize("api_key", SERVED_APIS, ids=lambda key: key.name)
def test_the_code_is_in_the_answer_of_every_version(api_key):
    for version in versions_of(api_key):
        if (api_key, version) in SPEECHLESS:
            continue
        request = filled(api_key, version)
        context = Context(api_key, version, 1, "test", "PLAINTEXT", "127.0.0.1")
        answer = carried(refused(context, request, REFUSAL), version)
        assert ErrorCode.POLICY_VIOLATION in codes_in(answer), f"version {version}: {answer}"


def test_what_was_asked_about_is_named_beside_its_error():
    context = Context(ApiKey.DELETE_RECORDS, 2, 1, "test", "PLAINTEXT", "127.0.0.1")
    answer = refused(context, filled(ApiKey.DELETE_RECORDS, 2), REFUSAL)
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index, partition.error_code) == ("x", 0, 44)
    context = Context(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, 1, "test", "PLAINTEXT", "127.0.0.1")
    (moved,) = refused(context, filled(ApiKey.ALTER_REPLICA_LOG_DIRS, 2), REFUSAL).results
    assert (moved.topic_name, moved.partitions[0].partition_index) == ("x", 7)


def test_commits_that_arrive_in_one_piece_are_told_apart():
    out = bytearray()
    kind = request_class(ApiKey.OFFSET_COMMIT)
    partitions = [kind.OffsetCommitRequestPartition(partition_index=n) for n in range(3)]
    request = kind(topics=[kind.OffsetCommitRequestTopic(name="x", partitions=partitions)])
    schema.encoder(kind, 9)(request, out)
    packed = commit.decode(out, 0, len(out), 9)
    assert not isinstance(packed.topics[0].partitions, list)
    context = Context(ApiKey.OFFSET_COMMIT, 9, 1, "test", "PLAINTEXT", "127.0.0.1")
    (topic,) = carried(refused(context, packed, REFUSAL), 9).topics
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
        (0, 44),
        (1, 44),
        (2, 44),
    ]
