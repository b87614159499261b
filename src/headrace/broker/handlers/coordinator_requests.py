"""Requests to coordinators: responses now or later, and rejections as responses."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from headrace.model.errors import ErrorCode, Rejected
from headrace.wire.schema import Message

# A response, or the coroutine that will return it: dispatch accepts both.
Answer = Message | Coroutine[Any, Any, Message]
Refuse = Callable[[Rejected], Message]
Shape = Callable[[Any], Message]

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def reported_code(code: ErrorCode) -> ErrorCode:
    """The error code for the client: as in Kafka, it does not see a too large internal record."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if code in TOO_LARGE else code


def ask(
    coordinator: Callable[[str, Any], Any],
    key: str,
    decide: Callable[..., Any],
    refuse: Refuse,
    shape: Shape | None = None,
) -> Answer:
    """Ask the shard of ``key``, a group or a transactional id, through ``coordinator``.

    ``refuse`` turns a rejection into a response; ``shape`` fits an answer to the client's version.
    """
    try:
        answer = coordinator(key, decide)
    except Rejected as refusal:
        return refuse(refusal)
    if not isinstance(answer, Message):
        return _settle(answer, refuse, shape)
    return shape(answer) if shape is not None else answer


async def _settle(pending: Awaitable[Message], refuse: Refuse, shape: Shape | None) -> Message:
    try:
        answer = await pending
    except Rejected as refusal:
        return refuse(refusal)
    return shape(answer) if shape is not None else answer


def gather(answers: Iterable[Answer], finish: Callable[[list[Any]], Message]) -> Answer:
    """Pass all answers, in order, to ``finish``; at once unless one of them is pending."""
    collected = list(answers)
    if all(isinstance(answer, Message) for answer in collected):
        return finish(collected)
    return _gather_later(collected, finish)


async def _gather_later(answers: list[Answer], finish: Callable[[list[Any]], Message]) -> Message:
    return finish([answer if isinstance(answer, Message) else await answer for answer in answers])
