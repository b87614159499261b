"""``headrace serve``: run a broker in this process, or in a background process.

Imports neither typer, rich nor a Kafka client, so that the broker starts fast.
"""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace import __version__
from headrace.cli import log_lines, output, pid_file
from headrace.cli.plain_arguments import parsed
from headrace.model.config import BrokerConfig, parse_properties
from headrace.model.errors import ConfigError, Corrupt, Rejected
from headrace.world.event_loop import new_event_loop
from headrace.world.network import is_unresolved

if TYPE_CHECKING:
    import typer

    from headrace.broker.broker import Broker

DEFAULT_DATA = "headrace-data"
LOG_NAME = "headrace.log"
_EVERY_INTERFACE = ("", "0.0.0.0", "::")
# A background broker starts or fails within this time, even if it must recover its logs.
_DAEMON_START_S = 120.0

HELP = """\
Usage: headrace serve [OPTIONS] [SERVER.PROPERTIES]

  Start a broker.

  Settings have Kafka's names. They are read from the file, then from the options below, then
  from -X; later values win. Unknown settings produce a warning.

Arguments:
  SERVER.PROPERTIES      Kafka configuration file. [default: none, built-in defaults apply]

Options:
  --listen HOST:PORT     Address to listen on; port 0 picks a free port. PORT alone listens on
                         127.0.0.1. :PORT listens on every network interface: without security
                         settings, anyone who can reach this machine can read and write.
                         [default: 127.0.0.1:9092, or listeners of the file]
  --data DIR             Data directory. [default: ./headrace-data, or log.dirs of the file]
  -X KEY=VALUE           Broker setting, by its Kafka name; may be repeated.
  --strict               Refuse unknown settings.
  --ready-file FILE      Write the address to this file when the broker accepts clients.
  --pid-file FILE        File that holds the process ID. [default: headrace.pid in the data
                         directory]
  --log-format FORMAT    text, or json for one object per line. [default: text]
  --log-level LEVEL      DEBUG, INFO, WARN or ERROR. [default: INFO]
  -daemon, --daemon      Run in the background. The log is headrace.log in the data directory;
                         'headrace stop' stops the broker.
  -h, --help             Show this message and exit.

  Ctrl-C, SIGTERM or SIGHUP shuts the broker down cleanly. A second signal stops it immediately.
  The exit status is 0 after a clean shutdown, 1 if the broker cannot start or fails, and 2 for
  wrong options or settings.

Example:
  headrace serve
  headrace serve --listen 0.0.0.0:9092 -X advertised.listeners=PLAINTEXT://log.example:9092
  headrace serve config/server.properties -daemon
"""

_WITH_VALUE = {
    "--listen": "--listen",
    "--data": "--data",
    "-X": "-X",
    "--override": "-X",  # the name in kafka-server-start
    "--ready-file": "--ready-file",
    "--pid-file": "--pid-file",
    "--log-format": "--log-format",
    "--log-level": "--log-level",
}
_FLAGS = {
    "--strict": "--strict",
    "-daemon": "--daemon",
    "--daemon": "--daemon",
    "-h": "--help",
    "--help": "--help",
}


class ServeOptions(NamedTuple):
    file: Path | None
    listen: str | None
    data: Path | None
    settings: dict[str, str]
    strict: bool
    ready_file: Path | None
    pid_file: Path | None
    log_format: str
    log_level: str
    daemon: bool


def register(root: "typer.Typer") -> None:
    """Add the command to the list; ``main`` runs serve without typer."""
    import typer

    @root.command(
        "serve",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def serve(context: typer.Context) -> None:
        """Start a broker."""
        raise typer.Exit(run(context.args))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    options = parsed_options(arguments)
    if options is None:
        output.line(HELP.rstrip())
        return output.DONE
    config = built_config(options)
    directory = data_directory(config)
    pid_path = options.pid_file or directory / pid_file.NAME
    if options.ready_file is not None:
        # A file left by an earlier run would report "ready" too early.
        try:
            options.ready_file.unlink(missing_ok=True)
        except OSError as failure:
            raise _wrong(f"--ready-file {output.reason(failure)}") from None
    if options.daemon:
        # The broker logs them too, but few users read that log in time.
        for warning in (*config.warnings, *exposure_warnings(config)):
            output.note(f"warning: {warning}")
        return _detach(arguments, config, pid_path, options.ready_file)
    log_lines.set_up(options.log_format, options.log_level)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(config, pid_path, options.ready_file))


def parsed_options(arguments: Sequence[str]) -> ServeOptions | None:
    """The parsed arguments; None if they ask for help."""
    given = parsed("serve", arguments, with_value=_WITH_VALUE, flags=_FLAGS)
    if "--help" in given.flags:
        return None
    if len(given.positional) > 1:
        raise _wrong(f"expected at most one configuration file, got {' '.join(given.positional)}")
    log_format = given.last("--log-format") or "text"
    if log_format not in log_lines.FORMATS:
        raise _wrong(f"--log-format {log_format}: expected text or json")
    log_level = (given.last("--log-level") or "INFO").upper()
    if log_level not in log_lines.LEVELS:
        raise _wrong(f"--log-level {log_level}: expected DEBUG, INFO, WARN or ERROR")
    if given.last("--data") == "":
        raise _wrong("--data: expected a directory, got ''")
    settings = {}
    for text in given.values.get("-X", []):
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise _wrong(f"-X {text!r}: expected KEY=VALUE")
        settings[name.strip()] = value
    return ServeOptions(
        file=_path(given.positional[0] if given.positional else None),
        listen=given.last("--listen"),
        data=_path(given.last("--data")),
        settings=settings,
        strict="--strict" in given.flags,
        ready_file=_path(given.last("--ready-file")),
        pid_file=_path(given.last("--pid-file")),
        log_format=log_format,
        log_level=log_level,
        daemon="--daemon" in given.flags,
    )


def settings_of(options: ServeOptions) -> dict[str, str]:
    """Settings of the file, then of the options, then of -X; later ones replace earlier ones."""
    settings = {} if options.file is None else _read_file(options.file)
    if options.listen is not None:
        settings["listeners"] = listener_of(options.listen)
        # The file's advertised.listeners belong to the file's listeners.
        settings.pop("advertised.listeners", None)
    given_log_dirs = {"log.dirs", "log.dir"} & (settings.keys() | options.settings.keys())
    if options.data is not None:
        settings.pop("log.dir", None)
        settings["log.dirs"] = str(options.data.absolute())
    elif options.file is None and not given_log_dirs:
        settings["log.dirs"] = str(Path(DEFAULT_DATA).absolute())
    settings.update(options.settings)
    return settings


def listener_of(text: str) -> str:
    """The listener for ``HOST:PORT``, ``:PORT`` (all interfaces) or ``PORT`` (127.0.0.1)."""
    if text.isdigit():
        text = f"127.0.0.1:{text}"
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or ("://" in host):
        raise _wrong(f"--listen {text}: expected HOST:PORT, such as 127.0.0.1:9092 or [::1]:0")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"PLAINTEXT://{host}:{port}"


def built_config(options: ServeOptions) -> BrokerConfig:
    try:
        return BrokerConfig.parse(settings_of(options), strict=options.strict)
    except ConfigError as failure:
        raise _wrong(str(failure)) from None


def data_directory(config: BrokerConfig) -> Path:
    """The first log directory, which also holds the pid file and the background log."""
    return Path(config.list("log.dirs")[0])


def exposure_warnings(config: BrokerConfig) -> list[str]:
    """A line for each listener that lets everyone in: no security, every network interface."""
    return [
        f"listener {listener} is open on every network interface without authentication or "
        "encryption: anyone who can reach this machine can read and write. To accept only local "
        "clients, listen on 127.0.0.1"
        for listener in config.listeners
        if listener.protocol == "PLAINTEXT" and listener.host in _EVERY_INTERFACE
    ]


def connectable(host: str, port: int) -> str:
    """The address for clients on this machine, even if the listener is on every interface."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def start_failure(failure: Exception) -> output.CommandFailed:
    """The error of a broker that cannot start, with what the user can do about it, if known."""
    text = output.reason(failure)
    if not text.startswith("Cannot "):
        text = f"cannot start the broker: {text}"
    return output.CommandFailed(text + _advice(failure))


def _advice(failure: Exception) -> str:
    if isinstance(failure, OSError) and is_unresolved(failure):
        return ". Check --listen or listeners"
    match failure.errno if isinstance(failure, OSError) else None:
        case errno.EADDRINUSE:
            return (
                ". Stop the process that uses it ('headrace stop' stops a broker), or choose "
                "another address with --listen"
            )
        case errno.EADDRNOTAVAIL:
            return (
                ". Use an address of this machine with --listen, and set advertised.listeners for "
                "the address that clients use"
            )
        case _:
            return ""


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


async def _serve(config: BrokerConfig, pid_path: Path, ready_file: Path | None) -> int:
    import logging

    from headrace.broker.broker import Broker

    log = logging.getLogger("headrace.cli")
    for warning in (*config.warnings, *exposure_warnings(config)):
        log.warning(warning)
    for note in config.notes:
        log.info(note)
    broker = Broker(config)
    loop = asyncio.get_running_loop()
    stop_asked = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop_asked.is_set():
            # A second signal: the user does not want to wait for the clean shutdown.
            os._exit(128 + number)
        log.info("Shutting down: received %s", signal.Signals(number).name)
        stop_asked.set()

    stop_signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        stop_signals.append(signal.SIGHUP)
    for number in stop_signals:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await broker.start()
    except (OSError, Corrupt, Rejected, ConfigError) as failure:
        raise start_failure(failure) from failure
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(pid_file.PidFile(pid_path))
        except OSError as failure:
            log.warning(
                "cannot write the pid file %s, so 'headrace stop' will not find this broker: %s",
                pid_path,
                failure,
            )
        address = connectable(*next(iter(broker.addresses.values())))
        if ready_file is not None:
            try:
                write_atomically(ready_file, f"{address}\n")
            except OSError as failure:
                await broker.stop()
                raise output.CommandFailed(
                    f"--ready-file {ready_file}: {failure.strerror}"
                ) from None
        try:
            output.line(announcement(address, config))
        except output.ReaderGone:
            output.abandon_stdout()  # serve clients even if stdout is closed
        await _until_stopped(broker, stop_asked)
    if broker.failure is not None:
        raise output.CommandFailed(f"the broker failed: {broker.failure}")
    return output.DONE


async def _until_stopped(broker: "Broker", stop_asked: asyncio.Event) -> None:
    """Wait until a signal asks to stop, or the broker stops on its own."""
    asked = asyncio.ensure_future(stop_asked.wait())
    stopped = asyncio.ensure_future(broker.wait_stopped())
    await asyncio.wait((asked, stopped), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not stopped.done():
        await broker.stop()
    await stopped


def _detach(
    arguments: Sequence[str], config: BrokerConfig, pid_path: Path, ready_file: Path | None
) -> int:
    """Start the same command in its own session, and wait until it accepts clients or fails.

    A new process, not a fork: a forked child would share the parent's terminal, file offsets and
    half-initialized modules.
    """
    directory = data_directory(config)
    log_path = directory / LOG_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        log_path.touch()
    except OSError as failure:
        from headrace.storage.log_directory import unusable

        raise start_failure(unusable(directory, failure)) from None
    holder = pid_file.holder_of(pid_path)
    if holder is not None:
        raise output.CommandFailed(
            f"A broker (pid {holder.process}) is already running in {directory}. Stop it with "
            f"'headrace stop --data {directory}'"
        )
    ready = ready_file or directory / f".headrace.ready.{os.getpid()}"
    kept = [argument for argument in arguments if _FLAGS.get(argument) != "--daemon"]
    command = [sys.executable, "-m", "headrace", "serve", *kept, "--ready-file", str(ready)]
    with log_path.open("ab") as log_file:
        log_start = log_file.tell()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    deadline = time.monotonic() + _DAEMON_START_S
    while not ready.exists():
        if child.poll() is not None:
            said = log_path.read_bytes()[log_start:].decode("utf-8", "replace").strip()
            last = said.splitlines()[-1] if said else f"status {child.returncode}"
            raise output.CommandFailed(
                f"{last.removeprefix('headrace: ')} (log: {log_path})",
                child.returncode if child.returncode > 0 else output.FAILED,
            )
        if time.monotonic() > deadline:
            raise output.CommandFailed(
                f"process {child.pid} does not accept clients yet; see {log_path}"
            )
        time.sleep(0.01)
    from headrace.cli import daemons

    daemons.remember(child.pid, pid_path)
    address = ready.read_text().strip()
    if ready_file is None:
        ready.unlink()
    output.line(f"{announcement(address, config)}, process {child.pid}, log in {log_path}")
    # It keeps running on purpose; without this, Python would warn at exit.
    child.returncode = output.DONE
    return output.DONE


def announcement(address: str, config: BrokerConfig) -> str:
    # The address is for clients on this machine; say that other clients can connect too.
    everywhere = any(listener.host in _EVERY_INTERFACE for listener in config.listeners)
    reach = " and every other address of this machine" if everywhere else ""
    directories = ", ".join(str(Path(path).absolute()) for path in config.list("log.dirs"))
    return f"Headrace {__version__} listening on {address}{reach}, data in {directories}"


def _read_file(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text("utf-8"), str(path))
    except OSError as failure:
        raise _wrong(f"{path}: {failure.strerror}") from None
    except UnicodeDecodeError as failure:
        raise _wrong(f"{path}: {failure}") from None
    except ConfigError as failure:
        raise _wrong(str(failure)) from None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _wrong(message: str) -> output.CommandFailed:
    return output.CommandFailed(message, output.WRONG_USAGE)
