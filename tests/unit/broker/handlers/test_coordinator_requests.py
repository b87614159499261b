"""Asking a coordinator: answers now or later, rejections as responses."""

import asyncio

import pytest

from headrace.broker.handlers.coordinator_requests import ask, gather, reported_code
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m


def refuse(refusal):
    return m.HeartbeatResponse(error_code=reported_code(refusal.code))


def shape(answer):
    return m.HeartbeatResponse(error_code=answer.error_code, throttle_time_ms=7)


async def later(answer):
    if isinstance(answer, Rejected):
        raise answer
    return answer


def now(answer):
    if isinstance(answer, Rejected):
        raise answer
    return answer


def asked(make, answer, *shaped):
    """The response, however long the coordinator takes for ``answer``."""
    given = ask(lambda key, decide: make(answer), "g", lambda: None, refuse, *shaped)
    return asyncio.run(given) if asyncio.iscoroutine(given) else given


@pytest.mark.parametrize("make", [now, later])
def test_an_answer_is_shaped_for_the_client(make):
    answer = m.HeartbeatResponse()
    assert asked(make, answer) is answer
    assert asked(make, answer, shape).throttle_time_ms == 7


@pytest.mark.parametrize("make", [now, later])
@pytest.mark.parametrize(
    ("code", "reported"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_rejection_becomes_a_response_and_is_not_shaped(make, code, reported):
    answer = asked(make, Rejected(code), shape)
    assert (answer.error_code, answer.throttle_time_ms) == (reported, 0)


@pytest.mark.parametrize("waits_for", [(), (0,), (1,), (0, 1)])
def test_gathered_answers_keep_their_order(waits_for):
    answers = [m.HeartbeatResponse(error_code=code) for code in (1, 2)]
    given = [later(each) if place in waits_for else each for place, each in enumerate(answers)]
    collected = []

    def finish(found):
        collected.extend(found)
        return m.HeartbeatResponse()

    result = gather(given, finish)
    assert asyncio.iscoroutine(result) == bool(waits_for)
    if waits_for:
        asyncio.run(result)
    assert collected == answers
