"""A handler that refuses as a whole: the code reaches the client, whatever its version."""

import pytest

from headrace.broker import handlers
from headrace.broker.context import Context
from headrace.broker.error_responses import refused
from headrace.model.errors import ErrorCode, Rejected
from headrace.testing import Broker
from headrace.wire import commit, schema
from headrace.wire.api import SERVED, ApiKey, request_class, response_class
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient

REFUSAL = Rejected(ErrorCode.POLICY_VIOLATION, "not today")
SERVED_APIS = [ApiKey(key) for key in sorted(SERVED)]
FIRST_PRODUCE = 3
# These versions say only what there is, and have no place for an error.
SPEECHLESS = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}


def filled(api_key, api_version):
    """A request with one element in every list, as it arrives in that version."""
    kind = request_class(api_key)
    structs = schema.definition(kind.__name__).structs

    def made(name, build):
        message = build()
        for field in structs[name]:
            if field.is_array:
                value = [one(field)]
            elif field.element in ("string", "bytes", "records") or field.is_struct:
                value = one(field)
            else:
                continue
            setattr(message, field.name, value)
        return message

    def one(field):
        if field.is_struct:
            return made(field.element, getattr(kind, field.element))
        plain = {"string": "x", "uuid": bytes(15) + b"\x01", "bytes": b"x", "records": b"x"}
        return plain.get(field.element, 7)

    return carried(made(kind.__name__, kind), api_version)


def carried(message, api_version):
    out = bytearray()
    schema.encoder(type(message), api_version)(message, out)
    return schema.decoder(type(message), api_version)(bytes(out), 0, len(out))[0]


def codes_in(message):
    for name in message.__slots__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        for element in value if isinstance(value, list) else ():
            if isinstance(element, schema.Message):
                yield from codes_in(element)


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


@pytest.mark.parametrize("fault", [REFUSAL, ZeroDivisionError("a bug")], ids=["refusal", "bug"])
def test_a_handler_that_raises_is_answered_by_a_running_broker(monkeypatch, fault):
    async def later(*_):
        raise fault

    def at_once(*_):
        raise fault

    expected = ErrorCode.POLICY_VIOLATION if fault is REFUSAL else ErrorCode.UNKNOWN_SERVER_ERROR
    broker = Broker()
    broker.start()
    try:
        for broken in (at_once, later):
            for api_key in handlers.HANDLERS:
                monkeypatch.setitem(handlers._loaded, api_key, broken)
                version = SERVED[api_key][1]
                with RawClient(broker.bootstrap_servers) as client:
                    answer = client.ask(api_key, version, filled(api_key, version))
                assert isinstance(answer, response_class(api_key))
                assert expected in codes_in(answer), ApiKey(api_key).name
    finally:
        Inside(broker).node.bugs.clear()  # they were asked for
        broker.stop()
