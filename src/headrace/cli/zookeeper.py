"""``headrace zookeeper``: run ZooKeeper on this machine; its status, a shell, and its end.

Runs without typer, because ``zookeeper [ZOO.CFG]`` and ``zookeeper VERB`` share one place.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli import daemons, output, pid_file
from headrace.cli.plain_arguments import Arguments, parsed
from headrace.cli.serve import write_atomically
from headrace.cli.stop import end_process
from headrace.launch.java import JavaMissing
from headrace.launch.zookeeper import (
    CLIENT_PORT,
    CONFIG_NAME,
    ZooKeeperFailed,
    ZooKeeperServer,
    mode_of,
    write_config,
)

if TYPE_CHECKING:
    import typer

DEFAULT_DATA = "zookeeper-data"
_LOG_NAME = "headrace-zookeeper.log"
_START_TIMEOUT_S = 60.0
_MAJORITY_GRACE_S = 1.0
_STOP_TIMEOUT_S = 30.0

HELP = """\
Usage: headrace zookeeper [OPTIONS] [ZOO.CFG]
       headrace zookeeper status [ZOO.CFG | HOST:PORT...]
       headrace zookeeper shell HOST:PORT[/CHROOT] [COMMAND...]
       headrace zookeeper stop [ZOO.CFG]

  Run ZooKeeper, which stores the state of a cluster of brokers.

  Uses the ZooKeeper that PySpark brings (pip install pyspark) and requires Java 17 or newer. With
  a configuration file, ZooKeeper runs as that file says; a server of an ensemble also needs the
  file myid in its dataDir. Without one, ZooKeeper serves this machine alone, and zoo.cfg is
  written to the data directory.

Verbs:
  status                 Print the mode: standalone, leader or follower. The exit status is 1 if a
                         server does not serve.
  shell                  Run a command (ls, get, stat, set, create, delete, deleteall), commands
                         from stdin, or an interactive shell. Requires headrace[cluster].
  stop                   Stop ZooKeeper cleanly and wait until its process has ended.

Arguments:
  ZOO.CFG                ZooKeeper's configuration file.

Options:
  --data DIR             Data directory. [default: ./zookeeper-data, or dataDir of the file]
  --port PORT            Port for clients on 127.0.0.1; 0 picks a free port. [default: 2181]
  --servers LIST         The ensemble: HOST:PEER_PORT:ELECTION_PORT of each server, in the order of
                         their numbers, separated by commas. Requires --id.
  --id N                 The number of this server in the ensemble, from 1.
  --ready-file FILE      Write the address to this file when ZooKeeper serves.
  -daemon, --daemon      Run in the background; 'headrace zookeeper stop' stops it.
  -h, --help             Show this message and exit.

  Ctrl-C, SIGTERM or SIGHUP stops ZooKeeper. It also ends with the process that started it.

Example:
  headrace zookeeper
  headrace zookeeper conf/zoo.cfg -daemon
  headrace zookeeper status 127.0.0.1:2181
  headrace zookeeper shell 127.0.0.1:2181 get /config/topics/my-topic
"""

_WITH_VALUE = {
    "--data": "--data",
    "--port": "--port",
    "--servers": "--servers",
    "--id": "--id",
    "--ready-file": "--ready-file",
}
_FLAGS = {"-daemon": "--daemon", "--daemon": "--daemon", "-h": "--help", "--help": "--help"}


class _StopAsked(Exception):
    """A signal asked to stop."""


class _Place(NamedTuple):
    """Where a server's files are."""

    config: Path
    data: Path

    @property
    def pid_path(self) -> Path:
        return self.data / pid_file.ZOOKEEPER_NAME


def register(root: "typer.Typer") -> None:
    """Add the command to the list; ``main`` runs zookeeper without typer."""
    import typer

    @root.command(
        "zookeeper",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def zookeeper(context: typer.Context) -> None:
        """Run ZooKeeper for a cluster of brokers."""
        raise typer.Exit(run(context.args))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if verb == "shell":
        if not rest or rest[0] in ("-h", "--help"):
            return _help()
        from headrace.cli.zookeeper_shell import run_shell

        return run_shell(rest[0], rest[1:])
    verbs = {"status": _status, "stop": _stop}
    given = parsed(
        "zookeeper",
        rest if verb in verbs else arguments,
        with_value=_WITH_VALUE,
        flags=_FLAGS,
    )
    if "--help" in given.flags:
        return _help()
    if verb in verbs:
        return verbs[verb](given)
    try:
        return _detach(arguments, given) if "--daemon" in given.flags else _serve(given)
    except (JavaMissing, ZooKeeperFailed) as failure:
        raise output.CommandFailed(str(failure)) from None
    except OSError as failure:
        raise output.CommandFailed(f"cannot start ZooKeeper: {output.reason(failure)}") from None


def _help() -> int:
    output.line(HELP.rstrip())
    return output.DONE


# --- running


def _serve(given: Arguments) -> int:
    place = _place(given, write=True)
    _check_not_running(place)
    ready_file = given.last("--ready-file")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _ask_to_stop)
    with ZooKeeperServer(place.config) as server, contextlib.suppress(_StopAsked):
        server.start()
        mode = _wait_ready(server)
        with pid_file.PidFile(place.pid_path):
            daemons.remember(os.getpid(), place.pid_path)
            if ready_file is not None:
                write_atomically(Path(ready_file), f"{server.connect}\n")
            output.line(_announcement(server, mode))
            status = server.child.wait()
        raise ZooKeeperFailed(
            f"ZooKeeper ended with status {status}. Its output is in {server.child.log_path}:\n"
            f"{server.child.last_lines()}"
        )
    return output.DONE


def _ask_to_stop(number: int, frame: FrameType | None) -> None:
    # A second signal would only interrupt the clean stop.
    signal.signal(number, signal.SIG_IGN)
    raise _StopAsked


def _wait_ready(server: ZooKeeperServer) -> str | None:
    """The mode; None for a server of an ensemble that does not have a majority yet."""
    if not server.is_one_of_several:
        return server.wait_ready(_START_TIMEOUT_S)
    try:
        return server.wait_ready(_MAJORITY_GRACE_S)
    except ZooKeeperFailed:
        if server.child.exit_status is not None:
            raise
        return None


def _announcement(server: ZooKeeperServer, mode: str | None) -> str:
    how = f"serving on {server.connect} as {mode}" if mode else "waiting for a majority of servers"
    return f"ZooKeeper {how}, data in {server.data.absolute()}"


def _detach(arguments: Sequence[str], given: Arguments) -> int:
    """Start the same command in its own session, and wait until it serves or fails."""
    place = _place(given, write=True)
    _check_not_running(place)
    kept = [argument for argument in arguments if _FLAGS.get(argument) != "--daemon"]
    place.data.mkdir(parents=True, exist_ok=True)
    log_path = place.data / _LOG_NAME
    with log_path.open("wb") as log_file:
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", "zookeeper", *kept],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
        )
    assert child.stdout is not None
    # The announcement is the only line; without one the command has failed.
    with child.stdout as printed:
        announcement = printed.readline().decode("utf-8", "replace").strip()
    if not announcement:
        status = child.wait()
        said = log_path.read_text("utf-8", "replace").strip() or f"status {status}"
        raise output.CommandFailed(said.removeprefix("headrace: "))
    output.line(f"{announcement}, process {child.pid}")
    # It keeps running on purpose; without this, Python would warn at exit.
    child.returncode = output.DONE
    return output.DONE


def _check_not_running(place: _Place) -> None:
    holder = pid_file.holder_of(place.pid_path)
    if holder is not None:
        holder.close()
        raise output.CommandFailed(
            f"ZooKeeper (pid {holder.process}) already runs in {place.data}. Stop it with "
            f"'headrace zookeeper stop --data {place.data}'"
        )


# --- verbs


def _status(given: Arguments) -> int:
    named = [text for text in given.positional if _is_address(text)]
    if named:
        addresses = [each for text in named for each in text.split(",")]
    else:
        server = ZooKeeperServer(_place(given, write=False).config)
        addresses = [server.connect]
    status = output.DONE
    for address in addresses:
        host, _, port = address.rpartition(":")
        mode = mode_of(host, int(port))
        status = output.FAILED if mode is None else status
        text = f"Mode: {mode}" if mode is not None else f"No ZooKeeper serves at {address}"
        output.line(text if len(addresses) == 1 or mode is None else f"{address} {text}")
    return status


def _stop(given: Arguments) -> int:
    path = _place(given, write=False).pid_path
    holder = pid_file.holder_of(path)
    if holder is None and not (given.values or given.positional):
        running = daemons.running(zookeepers=True)
        if len(running) > 1:
            directories = ", ".join(str(each.parent) for each in running)
            raise _wrong(f"{len(running)} ZooKeepers run ({directories}); name one with --data")
        path = running[0] if running else path
        holder = pid_file.holder_of(path)
    if holder is None:
        raise output.CommandFailed(
            f"no running ZooKeeper found (looked in {path}); pass its data directory with --data"
        )
    end_process(holder, _STOP_TIMEOUT_S)
    output.line(f"Stopped process {holder.process}")
    return output.DONE


# --- arguments


def _place(given: Arguments, *, write: bool) -> _Place:
    if len(given.positional) > 1:
        raise _wrong(f"expected one configuration file, got {' '.join(given.positional)}")
    if given.positional:
        described = [name for name in ("--port", "--servers", "--id", "--data") if given.last(name)]
        if described:
            raise _wrong(f"{described[0]} cannot be combined with a configuration file")
        config = Path(given.positional[0])
    else:
        data = Path(given.last("--data") or DEFAULT_DATA)
        config = data / CONFIG_NAME
        if write and _must_be_written(given, config):
            _write(given, data)
    if not config.exists():
        if write or given.positional:
            raise _wrong(f"{config}: no such file")
        return _Place(config, config.parent)
    return _Place(config, ZooKeeperServer(config).data)


def _must_be_written(given: Arguments, config: Path) -> bool:
    """The file is kept, with what was edited in it, unless options say otherwise."""
    return not config.exists() or bool({"--port", "--servers", "--id"} & given.values.keys())


def _write(given: Arguments, data: Path) -> None:
    servers = [each.strip() for each in (given.last("--servers") or "").split(",") if each.strip()]
    if servers and any(each.count(":") != 2 for each in servers):
        raise _wrong("--servers: expected HOST:PEER_PORT:ELECTION_PORT,…")
    my_id = _number(given, "--id")
    if bool(servers) != (my_id is not None) or (my_id is not None and my_id > len(servers)):
        raise _wrong("--servers and --id go together; --id is the place of this server in the list")
    port = _number(given, "--port")
    write_config(data, port=CLIENT_PORT if port is None else port, servers=servers, my_id=my_id)


def _number(given: Arguments, name: str) -> int | None:
    text = given.last(name)
    if text is not None and not text.isdigit():
        raise _wrong(f"{name} {text}: expected a number")
    return None if text is None else int(text)


def _is_address(text: str) -> bool:
    return all(":" in each and each.rpartition(":")[2].isdigit() for each in text.split(","))


def _wrong(message: str) -> output.CommandFailed:
    return output.CommandFailed(message, output.WRONG_USAGE)
