"""The errors of the client, as its callers and Spark see them."""

import pickle

import pytest

from headrace.client.errors import ClientError, Disconnected, Refused, error_code
from headrace.model.errors import ErrorCode


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Disconnected("gone"), "gone"),
        (Refused(ErrorCode.NOT_CONTROLLER, "creating t"), "creating t: NOT_CONTROLLER"),
        (Refused(ErrorCode.NOT_CONTROLLER, "x", "wait"), "x: NOT_CONTROLLER (wait)"),
    ],
)
def test_an_error_has_one_text_and_keeps_it_when_pickled(error, text):
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, ClientError)
    assert (type(copy), str(copy)) == (type(error), text)


def test_the_code_says_whether_a_retry_may_help():
    assert Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x").retriable
    assert not Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x").retriable


def test_a_code_that_is_newer_than_our_list_is_an_unknown_error():
    assert error_code(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_code(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
