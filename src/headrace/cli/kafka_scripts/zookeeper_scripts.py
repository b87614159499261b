"""ZooKeeper's scripts, Kafka's and its own, translated into ``headrace zookeeper``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import Syntax, Translation

_HELP = Translation(["zookeeper", "--help"])
_START = Syntax(
    "zookeeper-server-start",
    "zookeeper",
    with_value=("-name",),
    flags=("-daemon", "-loggc", "--help"),
)
_ZK_SERVER = Syntax("zkServer", "zookeeper", with_value=("--config",), flags=("--help",))
_ZK_SERVER_ACTIONS = {
    "start": [],
    "start-foreground": [],
    "status": ["status"],
    "stop": ["stop"],
}


def start(arguments: Sequence[str]) -> Translation:
    """``zookeeper-server-start [-daemon] zookeeper.properties``."""
    given = _START.parse(arguments)
    if "--help" in given.flags:
        return _HELP
    daemon = ["-daemon"] if "-daemon" in given.flags else []
    return Translation(["zookeeper", *given.positional, *daemon])


def stop(arguments: Sequence[str]) -> Translation:
    """``zookeeper-server-stop``."""
    if "--help" in arguments:
        return _HELP
    if arguments:
        raise values.wrong(
            "zookeeper-server-stop: name the server by its configuration file, "
            "'headrace zookeeper stop zoo.cfg', or by its data directory, "
            "'headrace zookeeper stop --data DIR'"
        )
    return Translation(["zookeeper", "stop"])


def shell(arguments: Sequence[str]) -> Translation:
    """``zookeeper-shell HOST:PORT[/CHROOT] [COMMAND…]``."""
    if "-zk-tls-config-file" in arguments:
        raise values.wrong("zookeeper-shell: -zk-tls-config-file is not supported")
    return _HELP if "--help" in arguments else Translation(["zookeeper", "shell", *arguments])


def zk_cli(arguments: Sequence[str]) -> Translation:
    """``zkCli -server HOST:PORT [COMMAND…]``."""
    address = "127.0.0.1:2181"
    rest = list(arguments)
    if rest[:1] == ["-server"] and len(rest) > 1:
        address, rest = rest[1], rest[2:]
    return shell([address, *rest])


def zk_server(arguments: Sequence[str]) -> Translation:
    """``zkServer [--config DIR] start|start-foreground|status|stop [ZOO.CFG]``."""
    given = _ZK_SERVER.parse(arguments)
    action, *files = given.positional or ["--help"]
    if "--help" in given.flags or action == "--help":
        return _HELP
    if action not in _ZK_SERVER_ACTIONS:
        known = ", ".join(_ZK_SERVER_ACTIONS)
        raise values.wrong(f"zkServer {action}: expected one of {known}")
    directory = given.last("--config") or "conf"
    name = files[0] if files else "zoo.cfg"
    path = name if "/" in name else f"{directory.rstrip('/')}/{name}"
    daemon = ["-daemon"] if action == "start" else []
    return Translation(["zookeeper", *_ZK_SERVER_ACTIONS[action], path, *daemon])
