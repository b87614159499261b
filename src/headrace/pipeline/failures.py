"""What can go wrong between Spark and the brokers, told to the one who runs the query.

    BadOption      an option is wrong         -> refused by name before anything runs
    Disconnected   a broker went away         -> asked again, elsewhere if need be
    Refused        a broker said no           -> asked again if its code says that helps
    DataLost       rows are gone              -> stops the query unless failOnDataLoss is off
    BadRow         a row cannot be written    -> names the row's place and the option to change

All are plain exceptions with one text, since Spark pickles them and shows only the text.
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


class PipelineError(Exception):
    """The common root, so that a caller can tell our refusals from bugs."""


class BadOption(PipelineError):
    """An option of the source or the sink is wrong; the text names it and says what to use."""


class Disconnected(PipelineError):
    """The connection to a broker could not be made or broke; its last request may have arrived."""


class Refused(PipelineError):
    """A broker answered with an error code."""

    def __init__(self, code: ErrorCode, what: str) -> None:
        super().__init__(f"{what}: {code.name}")
        self.code = code
        self.what = what

    def __reduce__(self) -> tuple[type["Refused"], tuple[ErrorCode, str]]:
        return type(self), (self.code, self.what)

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


class DataLost(PipelineError):
    """Rows that the query was to read are no longer there."""


class BadRow(PipelineError):
    """A row cannot be written as it is."""


def error_code(number: int) -> ErrorCode:
    """The code by name; one that is newer than our list is taken as unknown."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def refuse(number: int, what: str) -> None:
    """Raises Refused unless the broker's code says that all is well."""
    if number:
        raise Refused(error_code(number), what)
