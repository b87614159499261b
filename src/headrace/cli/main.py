"""The command ``headrace``: which part of it runs.

``serve`` and ``stop`` are answered here without typer, rich or a client, because
a broker must be up in a fraction of a second. Everything else is typer's; only
the noun that was asked for is imported, all of them for the list of commands.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from headrace.cli import output

# By module of this package; each has ``register``, which adds it to typer's root.
# The order is that of the help.
COMMANDS = {
    "serve": "serve",
    "stop": "stop",
    "demo": "demo",
    "topics": "topics",
    "configs": "configs",
    "groups": "groups",
    "transactions": "transactions",
    "produce": "produce",
    "consume": "consume",
    "log-dirs": "log_dirs",
    "dump-log": "dump_log",
    "perf": "perf",
    "version": "version",
}
_WITHOUT_TYPER = ("serve", "stop")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and leave with its status."""
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
    """What ``main`` does, with failures raised."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments[:1] and arguments[0] in _WITHOUT_TYPER:
        return _run_without_typer(arguments)

    from headrace.cli.kafka_scripts.translation import translate

    translated = translate(arguments)
    for note in translated.notes:
        output.note(f"note: {note}")
    if translated.arguments[:1] and translated.arguments[0] in _WITHOUT_TYPER:
        return _run_without_typer(translated.arguments)

    from headrace.cli.root import run_typer

    return run_typer(translated.arguments)


def _run_without_typer(arguments: list[str]) -> int:
    entry: Callable[[list[str]], int] = import_module(f"headrace.cli.{COMMANDS[arguments[0]]}").run
    return entry(arguments[1:])
