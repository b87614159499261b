"""``headrace stop``: stop a broker and wait until its process has ended."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import output, pid_file
from headrace.cli.plain_arguments import parsed

if TYPE_CHECKING:
    import typer

HELP = """\
Usage: headrace stop [OPTIONS] [SERVER.PROPERTIES]

  Stop a broker cleanly and wait until its process has ended.

  The broker is found by the pid file in its data directory, whether it runs in the background or
  in a terminal. Without arguments, the command stops the broker of ./headrace-data, or else the
  only broker that you started with -daemon.

Arguments:
  SERVER.PROPERTIES      Configuration file of the broker; its log.dirs names the data directory.

Options:
  --data DIR             Data directory of the broker. [default: ./headrace-data]
  --pid-file FILE        Pid file of the broker, if it was started with --pid-file.
  --all                  Stop the broker of ./headrace-data and every broker that you started with
                         -daemon, one after the other.
  --timeout SECONDS      Maximum time to wait for the process to end. [default: 30]
  -h, --help             Show this message and exit.

  The exit status is 0 after the process has ended, and 1 if no broker was found or it did not
  end in time.

Example:
  headrace stop --data /var/lib/headrace
"""

STOP_TIMEOUT_S = 30.0

_WITH_VALUE = {"--data": "--data", "--pid-file": "--pid-file", "--timeout": "--timeout"}
_FLAGS = {"-h": "--help", "--help": "--help", "--all": "--all"}


def register(root: "typer.Typer") -> None:
    """Add the command to the list; ``main`` runs stop without typer."""
    import typer

    @root.command(
        "stop",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def stop(context: typer.Context) -> None:
        """Stop a background broker."""
        raise typer.Exit(run(context.args))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    given = parsed("stop", arguments, with_value=_WITH_VALUE, flags=_FLAGS)
    if "--help" in given.flags:
        output.line(HELP.rstrip())
        return output.DONE
    timeout_text = given.last("--timeout") or f"{STOP_TIMEOUT_S:g}"
    try:
        timeout_s = float(timeout_text)
    except ValueError:
        raise output.CommandFailed(
            f"--timeout {timeout_text}: expected seconds", output.WRONG_USAGE
        ) from None
    if "--all" in given.flags:
        if given.positional or given.values.keys() - {"--timeout"}:
            raise output.CommandFailed(
                "--all stops every broker; do not name one as well", output.WRONG_USAGE
            )
        return _stop_all(timeout_s)
    path = _pid_path(given.last("--pid-file"), given.last("--data"), given.positional)
    holder = pid_file.holder_of(path)
    if holder is None and not (given.values or given.positional):
        path = _the_only_daemon() or path
        holder = pid_file.holder_of(path)
    if holder is None:
        raise output.CommandFailed(
            f"no running broker found (looked in {path}); pass its data directory with "
            "--data or its pid file with --pid-file"
        )
    end_process(holder, timeout_s)
    output.line(f"Stopped process {holder.process}")
    return output.DONE


def broker_process(server_file: str) -> tuple[pid_file.Holder | None, int | None]:
    """The running process of the broker with this property file, and the broker's ID.

    The ID is None if neither the file nor the log directories have it yet.
    """
    from headrace.broker.broker import owner_of
    from headrace.cli.serve import built_config, data_directory, parsed_options
    from headrace.world.files import SystemFiles

    options = parsed_options([server_file])
    assert options is not None
    config = built_config(options)
    broker_id: int | None = config.node_id
    if not config.node_id_is_given:
        broker_id = owner_of(SystemFiles(), map(Path, config.list("log.dirs")))
    return pid_file.holder_of(data_directory(config) / pid_file.NAME), broker_id


def _stop_all(timeout_s: float) -> int:
    from headrace.cli import daemons

    here = _pid_path(None, None, [])
    holders = [pid_file.holder_of(path) for path in dict.fromkeys([here, *daemons.running()])]
    running = [holder for holder in holders if holder is not None]
    if not running:
        raise output.CommandFailed("no running broker found")
    for holder in running:
        end_process(holder, timeout_s)
        output.line(f"Stopped process {holder.process}")
    return output.DONE


def end_process(holder: pid_file.Holder, timeout_s: float) -> None:
    """Ask the process to end, and wait for its end. Raises CommandFailed if it still runs."""
    with contextlib.closing(holder):
        # The process may have ended in the meantime.
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.process, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while not holder.has_ended():
            if time.monotonic() > deadline:
                raise output.CommandFailed(
                    f"process {holder.process} still runs after {timeout_s:g} s"
                )
            time.sleep(0.01)


def _the_only_daemon() -> Path | None:
    from headrace.cli import daemons

    running = daemons.running()
    if len(running) > 1:
        directories = ", ".join(str(path.parent) for path in running)
        raise output.CommandFailed(
            f"{len(running)} brokers run in the background ({directories}); name one with --data",
            output.WRONG_USAGE,
        )
    return running[0] if running else None


def _pid_path(pid_path: str | None, data: str | None, positional: list[str]) -> Path:
    from headrace.cli.serve import built_config, data_directory, parsed_options

    if pid_path is not None:
        return Path(pid_path)
    # As serve does, so that both use the same directory.
    options = parsed_options([*positional, *(("--data", data) if data is not None else ())])
    assert options is not None
    return data_directory(built_config(options)) / pid_file.NAME
