"""``headrace zookeeper shell``: read and change ZooKeeper's nodes, as zookeeper-shell does."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.cli import output

_HELP = """\
ls [-s] PATH                      list the children
get [-s] PATH                     print the value
stat PATH                         print versions, times and owner
set PATH VALUE [VERSION]          change the value
create [-e] [-s] PATH [VALUE]     create a node; -e: ephemeral, -s: sequential
delete PATH [VERSION]             delete a node without children
deleteall PATH                    delete a node and everything below it
quit                              leave the shell"""


def run_shell(connect: str, command: Sequence[str], *, timeout_s: float = 10.0) -> int:
    """Run ``command``, or the commands of stdin if there is none."""
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError
    except ModuleNotFoundError:
        raise output.CommandFailed(
            "the shell requires the package kazoo: run pip install 'headrace[cluster]'"
        ) from None
    import logging
    import warnings

    logging.getLogger("headrace.cli").getChild("kazoo").setLevel(logging.CRITICAL)
    client = KazooClient(connect, logger=logging.getLogger("headrace.cli").getChild("kazoo"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing chroot: the commands say so
            client.start(timeout_s)
    except KazooTimeoutError:
        raise output.CommandFailed(
            f"no answer from ZooKeeper at {connect}. Start it with 'headrace zookeeper', or "
            "correct the address"
        ) from None
    try:
        if command:
            return _run(client, command)
        return max([_run(client, words) for words in _typed(connect)], default=output.DONE)
    finally:
        client.stop()
        client.close()


def _typed(connect: str) -> Iterator[list[str]]:
    """The commands of stdin, with a prompt on a terminal."""
    while True:
        if sys.stdin.isatty():
            try:
                line = input(f"[{connect}] ")
            except EOFError:
                return
        else:
            line = sys.stdin.readline()
            if not line:
                return
        try:
            words = shlex.split(line)
        except ValueError as failure:
            output.error(str(failure))
            continue
        if words[:1] == ["quit"]:
            return
        if words:
            yield words


def _run(client: Any, words: Sequence[str]) -> int:
    from kazoo.exceptions import KazooException

    name, *rest = words
    flags = {word for word in rest if word in ("-e", "-s")}
    arguments = [word for word in rest if word not in flags]
    command = _COMMANDS.get(name)
    if command is None or (name != "help" and not 1 <= len(arguments) <= 3):
        output.error(f"{' '.join(words)}: unknown command or wrong arguments\n{_HELP}")
        return output.WRONG_USAGE
    try:
        command(client, arguments, flags)
    except KazooException as refused:
        # As the Java shell: NoNodeError is "NoNode".
        what = type(refused).__name__.removesuffix("Error")
        output.error(f"{name} {arguments[0]}: {what}")
        return output.FAILED
    except ValueError as wrong:
        output.error(f"{name} {' '.join(arguments)}: {wrong}")
        return output.WRONG_USAGE
    return output.DONE


def _ls(client: Any, arguments: list[str], flags: set[str]) -> None:
    names, stat = client.get_children(arguments[0], include_data=True)
    output.line(f"[{', '.join(sorted(names))}]")
    if "-s" in flags:
        _print_stat(stat)


def _get(client: Any, arguments: list[str], flags: set[str]) -> None:
    value, stat = client.get(arguments[0])
    output.line((value or b"").decode("utf-8", "replace"))
    if "-s" in flags:
        _print_stat(stat)


def _stat(client: Any, arguments: list[str], flags: set[str]) -> None:
    _print_stat(client.get(arguments[0])[1])


def _set(client: Any, arguments: list[str], flags: set[str]) -> None:
    path, value, version = [*arguments, "-1"][:3] if len(arguments) > 1 else _missing("VALUE")
    client.set(path, value.encode(), int(version))


def _create(client: Any, arguments: list[str], flags: set[str]) -> None:
    path, value = [*arguments, ""][:2]
    created = client.create(path, value.encode(), ephemeral="-e" in flags, sequence="-s" in flags)
    output.line(f"Created {created}")


def _delete(client: Any, arguments: list[str], flags: set[str]) -> None:
    path, version = [*arguments, "-1"][:2]
    client.delete(path, int(version))


def _delete_all(client: Any, arguments: list[str], flags: set[str]) -> None:
    client.delete(arguments[0], recursive=True)


def _help(client: Any, arguments: list[str], flags: set[str]) -> None:
    output.line(_HELP)


_COMMANDS: dict[str, Callable[[Any, list[str], set[str]], None]] = {
    "ls": _ls,
    "get": _get,
    "stat": _stat,
    "set": _set,
    "create": _create,
    "delete": _delete,
    "deleteall": _delete_all,
    "rmr": _delete_all,
    "help": _help,
}


def _missing(what: str) -> list[str]:
    raise ValueError(f"{what} is missing")


def _print_stat(stat: Any) -> None:
    for name, value in (
        ("cZxid", hex(stat.czxid)),
        ("ctime", _time(stat.ctime)),
        ("mZxid", hex(stat.mzxid)),
        ("mtime", _time(stat.mtime)),
        ("pZxid", hex(stat.pzxid)),
        ("cversion", stat.cversion),
        ("dataVersion", stat.version),
        ("aclVersion", stat.aversion),
        ("ephemeralOwner", hex(stat.ephemeralOwner)),
        ("dataLength", stat.dataLength),
        ("numChildren", stat.numChildren),
    ):
        output.line(f"{name} = {value}")


def _time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
