"""Cached responses, by API version, listener and body of the request."""

from headrace.broker.context import Context
from headrace.broker.response_cache import ResponseCache
from headrace.wire.api import ApiKey


def a_context(listener="PLAINTEXT", api_key=ApiKey.METADATA, api_version=12):
    return Context(int(api_key), api_version, 1, "client", listener, "127.0.0.1")


def words(context, body=b"topics"):
    return ResponseCache.cache_key(context, memoryview(body))


def test_equal_requests_get_the_same_response_with_their_own_correlation_id():
    known = ResponseCache()
    question = words(a_context())
    assert known.find(question, 1, 5) is None
    known.keep(question, bytearray(b"size\0\0\0\5answer"))
    assert known.find(question, 1, -2) == b"size\xff\xff\xff\xfeanswer"


def test_a_change_of_the_cluster_clears_the_cache():
    known = ResponseCache()
    question = words(a_context())
    known.find(question, 1, 5)
    known.keep(question, bytearray(b"sizecorranswer"))
    assert known.find(question, 2, 5) is None
    assert known.find(question, 1, 5) is None


def test_version_listener_and_body_are_part_of_the_key():
    different = {
        words(a_context()),
        words(a_context(listener="EXTERNAL")),
        words(a_context(api_version=11)),
        words(a_context(), b"others"),
        words(a_context(api_key=ApiKey.API_VERSIONS)),
    }
    assert len(different) == 5


def test_only_small_requests_of_some_apis_are_cached():
    assert words(a_context(api_key=ApiKey.LIST_OFFSETS)) is None
    assert words(a_context(), bytes(10_000)) is None


def test_large_responses_make_room_for_each_other():
    known = ResponseCache()
    first, second = words(a_context(), b"first"), words(a_context(), b"second")
    known.find(first, 1, 5)
    known.keep(first, bytearray(10 << 20))
    known.keep(second, bytearray(10 << 20))
    assert known.find(first, 1, 5) is None
    assert known.find(second, 1, 5) is not None
