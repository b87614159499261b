"""What can go wrong between Spark and the brokers, told to the one who runs the query.

    BadOption      an option is wrong         -> refused by name before anything runs
    Disconnected   a broker went away         -> asked again, elsewhere if need be
    Refused        a broker said no           -> asked again if its code says that helps
    DataLost       rows are gone              -> stops the query unless failOnDataLoss is off

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

# What helps after a refusal for lack of permission. The refusal itself names the topic, group or
# id; which permission is missing no broker tells.
_PERMISSIONS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant the query's user DESCRIBE on this topic, and READ "
    "for reading, WRITE for writing, CREATE for making it; or change the option that names it "
    "(subscribe, assign, topic), or the user in kafka.sasl.jaas.config",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant the query's user READ on this group, or change "
    "kafka.group.id or groupIdPrefix",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant the query's user WRITE and DESCRIBE on "
    "the transactional ids headrace-*, or change the user in kafka.sasl.jaas.config",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant the query's user IDEMPOTENT_WRITE on the "
    "cluster, or set kafka.enable.idempotence to false where at least once is enough",
}


class PipelineError(Exception):
    """The common root, so that a caller can tell our refusals from bugs."""


class BadOption(PipelineError):
    """An option of the source or the sink is wrong; the text names it and says what to use."""


class Disconnected(PipelineError):
    """The connection to a broker could not be made or broke; its last request may have arrived."""


class Refused(PipelineError):
    """A broker answered with an error code."""

    def __init__(self, code: ErrorCode, what: str) -> None:
        advice = _PERMISSIONS.get(code)
        super().__init__(f"{what}: {code.name}" + (f" ({advice})" if advice else ""))
        self.code = code
        self.what = what

    def __reduce__(self) -> tuple[type["Refused"], tuple[ErrorCode, str]]:
        return type(self), (self.code, self.what)

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


class DataLost(PipelineError):
    """Rows that the query was to read are no longer there."""


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
