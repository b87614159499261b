"""A bug in a handler: the client gets an error, the log the trace, the connection its end."""

from headrace.broker.bugs import Bugs
from headrace.broker.context import Context
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.session import parse_response

CONTEXT = Context(ApiKey.LIST_GROUPS, 4, 42, "a client", "PLAINTEXT", "127.0.0.1")


class Peer:
    """The part of a connection that is told to close."""

    closing = False

    def close_when_sent(self):
        self.closing = True

    def __str__(self):
        return "127.0.0.1:5"


def test_a_bug_is_answered_logged_and_closes_its_connection(caplog):
    bugs, peer, error = Bugs(), Peer(), ZeroDivisionError("a bug")
    answer = bugs.answer(peer, CONTEXT, m.ListGroupsRequest(), error)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert peer.closing
    assert list(bugs.met) == [error]
    (line,) = caplog.records
    assert line.exc_info[1] is error
    assert "ListGroups version 4 (client id a client)" in line.getMessage()


def test_only_the_latest_bugs_are_kept_and_none_keeps_its_frames(caplog):
    bugs = Bugs()
    for number in range(1000):
        try:
            raise ZeroDivisionError(number)
        except ZeroDivisionError as error:
            bugs.answer(Peer(), CONTEXT, None, error)
    assert [bug.args for bug in bugs.met] == [(number,) for number in range(900, 1000)]
    assert all(bug.__traceback__ is None for bug in bugs.met)
    assert all(line.exc_info[2] is not None for line in caplog.records)


def test_a_request_that_could_not_be_decoded_is_answered_too():
    frame = bytes(Bugs().frame(Peer(), CONTEXT, None, ZeroDivisionError()))
    response = parse_response(frame[4:], ApiKey.LIST_GROUPS, 4)
    assert response.correlation_id == 42
    assert response.decode(m.ListGroupsResponse).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
