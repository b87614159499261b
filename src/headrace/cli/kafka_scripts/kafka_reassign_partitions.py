"""``kafka-reassign-partitions``, translated into ``headrace reassign``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import Given, Syntax, Translation, translation

_ACTIONS = ("--generate", "--execute", "--verify", "--cancel", "--list")
_FILE = "--reassignment-json-file"
_TOPICS_FILE = "--topics-to-move-json-file"

_SYNTAX = Syntax(
    "kafka-reassign-partitions",
    "reassign",
    # Here --broker-list has the IDs of brokers, not addresses.
    with_value=(
        "--bootstrap-server",
        "-b",
        "--zookeeper",
        "--command-config",
        "--broker-list",
        "--throttle",
        "--replica-alter-log-dirs-throttle",
        "--timeout",
        _FILE,
        _TOPICS_FILE,
    ),
    flags=(
        *_ACTIONS,
        "--additional",
        "--disable-rack-aware",
        "--preserve-throttles",
        "--disallow-replication-factor-change",
        "--help",
    ),
)


def translate(arguments: Sequence[str]) -> Translation:
    given = _SYNTAX.parse(arguments)
    if "--help" in given.flags:
        return Translation(["reassign", "--help"])
    action = _SYNTAX.one_of(given, _ACTIONS)
    brokers = given.values.pop("--broker-list", [])
    notes = [
        f"{name} has no effect"
        for name in ("--timeout", "--replica-alter-log-dirs-throttle")
        if given.all(name)
    ]
    translated = translation(["reassign", *_command(action, given, brokers)], given)
    return translated._replace(notes=(*translated.notes, *notes))


def _command(action: str, given: Given, brokers: list[str]) -> list[str]:
    if action == "--list":
        return ["list"]
    if action == "--generate":
        if not brokers or not given.all(_TOPICS_FILE):
            raise values.wrong(
                f"kafka-reassign-partitions --generate: {_TOPICS_FILE} and --broker-list are needed"
            )
        racks = ["--disable-rack-aware"] if "--disable-rack-aware" in given.flags else []
        file = given.renamed(_TOPICS_FILE, "--topics-file")
        return ["generate", *file, "--brokers", brokers[-1], *racks]
    if not given.all(_FILE):
        raise values.wrong(f"kafka-reassign-partitions {action}: {_FILE} is missing")
    command = [action.removeprefix("--"), *given.renamed(_FILE, "--file")]
    if action == "--execute":
        # As Kafka's script, which does not wait.
        command += [*given.renamed("--throttle", "--throttle"), "--no-wait"]
        passed = ("--additional", "--disallow-replication-factor-change")
        return command + [flag for flag in passed if flag in given.flags]
    return command + (["--preserve-throttles"] if "--preserve-throttles" in given.flags else [])
