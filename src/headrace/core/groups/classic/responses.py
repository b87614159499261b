"""Answers to the classic requests, as messages."""

from typing import TypeVar

from headrace.core.outcome import Outcome, Reply, Ticket
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m

ResponseT = TypeVar("ResponseT", m.HeartbeatResponse, m.SyncGroupResponse)


def join_refused(ticket: Ticket, code: ErrorCode, member_id: str) -> Outcome:
    return Outcome(
        replies=(Reply(ticket, m.JoinGroupResponse(error_code=code, member_id=member_id)),)
    )


def refused(ticket: Ticket, response: type[ResponseT], code: ErrorCode) -> Outcome:
    return Outcome(replies=(Reply(ticket, response(error_code=code)),))


def left(ticket: Ticket, members: list[m.LeaveGroupResponse.MemberResponse]) -> Outcome:
    return Outcome(replies=(Reply(ticket, m.LeaveGroupResponse(members=members)),))
