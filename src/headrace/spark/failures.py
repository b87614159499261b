"""What can go wrong in the Spark source and sink, beside the errors of the Kafka client.

    BadOption      an option is wrong         -> refused by name before anything runs
    DataLost       rows are gone              -> stops the query unless failOnDataLoss is off

All are plain exceptions with one text, because Spark pickles them and shows only the text.
"""

from headrace.client.errors import ClientError, Refused, error_code
from headrace.model.errors import ErrorCode

# What the user can do about a missing permission. The error itself names the topic, group or ID; no
# broker says which permission is missing.
PERMISSIONS = {
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


class PipelineError(ClientError):
    """The source or the sink cannot do what the query asks for."""


class BadOption(PipelineError):
    """An option of the source or the sink is wrong; the text names it and says what to use."""


class DataLost(PipelineError):
    """Rows that the query was to read are gone."""


def refused(code: ErrorCode, what: str) -> Refused:
    """The error for a broker's code, with advice for the user who runs the query."""
    return Refused(code, what, PERMISSIONS.get(code, ""))


def refuse(number: int, what: str) -> None:
    """Raise Refused if the broker's error code is not NONE."""
    if number:
        raise refused(error_code(number), what)
