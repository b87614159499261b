"""What a caller of the client has to expect.

    Disconnected   the broker is unreachable, or its response is invalid   -> retry, on any broker
    Refused        the broker answered with an error                       -> retry if ``retriable``

Both are plain exceptions with one text, because Spark pickles them and shows only the text.
"""

from headrace.model.errors import ErrorCode

# The codes after which the same request, sent again or to another broker, may succeed.
RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ClientError(Exception):
    """The common root, so that a caller can tell expected failures from bugs."""


class Disconnected(ClientError):
    """The connection could not be opened, or it broke; the last request may have arrived."""


class Refused(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: ErrorCode, what: str, advice: str = "") -> None:
        super().__init__(f"{what}: {code.name}" + (f" ({advice})" if advice else ""))
        self.code = code
        self.what = what
        self.advice = advice

    def __reduce__(self) -> tuple[type["Refused"], tuple[ErrorCode, str, str]]:
        return type(self), (self.code, self.what, self.advice)

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


def error_code(number: int) -> ErrorCode:
    """The code by name; UNKNOWN_SERVER_ERROR for a code that is newer than our list."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
