"""What a client is told if the cluster metadata cannot be written: an error that it retries.

Another controller, or the end of a session, is an ordinary event in the life of a broker.
"""

from headrace.coordination.tree import TreeError
from headrace.model.errors import ErrorCode, Fenced, Rejected
from headrace.wire.api import ApiKey

# Raised by writes to the coordination tree.
OUTAGES = (Fenced, TreeError)

_CODES: dict[int, ErrorCode] = {
    ApiKey.METADATA: ErrorCode.LEADER_NOT_AVAILABLE,
    ApiKey.FIND_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ApiKey.ALTER_CONFIGS: ErrorCode.REQUEST_TIMED_OUT,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ErrorCode.REQUEST_TIMED_OUT,
}


def as_rejection(api_key: int, outage: Exception) -> Rejected:
    """The error of one request. Other requests than those above are for the controller."""
    code = _CODES.get(api_key, ErrorCode.NOT_CONTROLLER)
    return Rejected(code, f"The cluster metadata cannot be written now: {outage}. Retry.")
