"""``kafka-run-class kafka.admin.ShutdownBroker``, translated into ``headrace brokers shutdown``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import ADDRESS, Syntax, Translation, translation

_SYNTAX = Syntax(
    "kafka.admin.ShutdownBroker",
    "brokers shutdown",
    with_value=(*ADDRESS, "--broker", "--num.retries", "--retry.interval.ms"),
    flags=("--help",),
)
# The class did not retry unless it was told to.
_NO_RETRIES = ["--num-retries", "0"]


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["brokers", "shutdown", "--help"])
    broker = given.last("--broker")
    if broker is None:
        raise values.wrong("kafka.admin.ShutdownBroker: --broker is missing")
    retries = [
        *(given.renamed("--num.retries", "--num-retries") or _NO_RETRIES),
        *given.renamed("--retry.interval.ms", "--retry-interval-ms"),
    ]
    return translation(["brokers", "shutdown", broker, *retries], given)
