"""The command ``headrace``: its commands, and how one of them is run.

``serve``, ``stop`` and ``zookeeper`` run without typer, rich or a Kafka client, because a broker
must start in a fraction of a second. typer runs all other commands. Only the module of the
requested command is imported; the list of commands needs all of them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from headrace.cli import output

# Each command with its module in this package, in the sections and the order of the help. The
# module's ``register`` adds the command to typer's root.
SECTIONS = {
    "Run": {
        "serve": "serve",
        "up": "up",
        "stop": "stop",
        "zookeeper": "zookeeper",
        "migrate-to-zookeeper": "migrate_to_zookeeper",
        "demo": "demo",
    },
    "Data": {
        "topics": "topics",
        "configs": "configs",
        "produce": "produce",
        "consume": "consume",
        "ship": "ship",
        "pipeline": "pipeline",
        "report": "report",
        "sql": "sql",
    },
    "Inspect": {
        "cluster": "cluster",
        "brokers": "brokers",
        "groups": "groups",
        "transactions": "transactions",
        "log-dirs": "log_dirs",
        "dump-log": "dump_log",
        "version": "version",
    },
    "Administer": {
        "reassign": "reassign",
        "elect-leaders": "elect_leaders",
        "verify-replicas": "verify_replicas",
        "features": "features",
    },
    "Measure": {"perf": "perf", "size": "size"},
}
COMMANDS = {name: module for section in SECTIONS.values() for name, module in section.items()}
_WITHOUT_TYPER = ("serve", "stop", "zookeeper")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = run(arguments)
    except output.CommandFailed as failure:
        output.error(str(failure))
        status = failure.status
    except KeyboardInterrupt:
        status = output.INTERRUPTED
    except output.ReaderGone:
        output.abandon_stdout()
        status = output.DONE
    output.leave(status)


def run(arguments: list[str]) -> int:
    """Run one command and return its status. Raises CommandFailed."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments[:1] and arguments[0] in _WITHOUT_TYPER:
        return _run_without_typer(arguments)

    from headrace.cli.kafka_scripts.translation import translate

    translated = translate(arguments)
    for note in translated.notes:
        output.note(f"note: {note}")
    arguments = translated.arguments
    if arguments[:1] and arguments[0] in _WITHOUT_TYPER:
        return _run_without_typer(arguments)
    if translated.zookeeper is not None:
        from headrace.cli.zookeeper_brokers import bootstrap_servers

        bootstrap = bootstrap_servers(translated.zookeeper)
        arguments = [*arguments, *(["-b", bootstrap] if bootstrap is not None else [])]

    from headrace.cli.root import run_typer

    return run_typer(arguments)


def _run_without_typer(arguments: list[str]) -> int:
    entry: Callable[[list[str]], int] = import_module(f"headrace.cli.{COMMANDS[arguments[0]]}").run
    return entry(arguments[1:])
