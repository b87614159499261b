"""The brokers that a ZooKeeper knows, for scripts that name a cluster by ``--zookeeper``.

A standalone node has no ZooKeeper. If none runs at an address of this machine, the command goes to
the default broker, which is on this machine too. If none runs at another address, the command is
refused: guessing the broker could delete the wrong topic.
"""

import json
import logging
from typing import Any

from headrace.cli import values
from headrace.cli.client import why_unreachable
from headrace.cli.output import CommandFailed

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
_PORT = 2181
_TIMEOUT_S = 8.0


def bootstrap_servers(zookeeper: str) -> str | None:
    """The brokers registered at ``HOST:PORT,…[/chroot]``; None for the default broker."""
    hosts = [_address(text) for text in zookeeper.partition("/")[0].split(",")]
    reasons = []
    for host, port in hosts:
        why = why_unreachable(host.strip("[]"), port)
        if why is None:
            return ",".join(_registered(zookeeper))
        reasons.append(f"{host}:{port}: {why}")
    if all(host in _LOCAL_HOSTS for host, _ in hosts):
        return None
    raise values.wrong(
        f"--zookeeper {zookeeper}: cannot reach ZooKeeper ({'; '.join(reasons)}). Name a broker "
        "with -b HOST:9092"
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        return text.strip(), _PORT
    if not port.isdecimal() or not host:
        raise values.wrong(f"--zookeeper {text!r}: expected HOST:PORT")
    return host, int(port)


def _registered(zookeeper: str) -> list[str]:
    try:
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError
    except ImportError:
        raise CommandFailed(
            "--zookeeper requires kazoo: install 'headrace[cluster]', or name a broker with -b "
            "HOST:9092"
        ) from None
    # kazoo would print its connection errors in the middle of the command's output.
    silent = logging.Logger("kazoo", logging.CRITICAL + 1)
    client: Any = KazooClient(hosts=zookeeper, timeout=_TIMEOUT_S, read_only=True, logger=silent)
    try:
        client.start(timeout=_TIMEOUT_S)
        nodes = [
            json.loads(client.get(f"/brokers/ids/{number}")[0])
            for number in sorted(client.get_children("/brokers/ids"), key=int)
        ]
    except NoNodeError:
        nodes = []
    except (KazooException, KazooTimeoutError) as failure:
        raise CommandFailed(f"--zookeeper {zookeeper}: no answer ({failure})") from None
    finally:
        client.stop()
        client.close()
    addresses = [address for address in map(plaintext_address, nodes) if address is not None]
    if not addresses:
        raise CommandFailed(
            f"no broker with a PLAINTEXT listener is registered in ZooKeeper at {zookeeper}"
        )
    return addresses


def plaintext_address(node: dict[str, Any]) -> str | None:
    """The first PLAINTEXT endpoint of ``/brokers/ids/N``; None if there is none."""
    protocols = node.get("listener_security_protocol_map") or {}
    for endpoint in node.get("endpoints") or ():
        name, _, address = str(endpoint).partition("://")
        if protocols.get(name, name) == "PLAINTEXT":
            return address
    if node.get("host") and int(node.get("port") or -1) > 0:  # brokers before 0.9
        return f"{node['host']}:{node['port']}"
    return None
