"""Addresses with names: ``listeners``, ``advertised.listeners`` and their protocols."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.model.errors import ConfigError
from headrace.model.settings.values import split_list

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MAP = "listener.security.protocol.map"

# No address that a client could dial.
EVERY_INTERFACE = ("0.0.0.0", "::")


class Listener(NamedTuple):
    """One address with its name. An empty host means every interface."""

    name: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """``NAME:PROTOCOL,…`` as listener name -> protocol, both in capitals."""
    protocols: dict[str, str] = {}
    for entry in split_list(text):
        name, colon, protocol = entry.rpartition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or protocol not in _PROTOCOLS:
            raise ConfigError(
                f"{_MAP}={entry}: expected LISTENER:PROTOCOL with one of " + ", ".join(_PROTOCOLS)
            )
        if name in protocols:
            raise ConfigError(f"{_MAP}: listener {name} appears twice")
        protocols[name] = protocol
    return protocols


def parse_listeners(
    setting: str,
    entries: Iterable[str],
    protocols: Mapping[str, str],
    controller_names: Collection[str],
) -> list[Listener]:
    """Read ``NAME://host:port`` entries. Those of the controller may have any protocol."""
    found: dict[str, Listener] = {}
    for entry in entries:
        name, host, port = _split_address(setting, entry)
        if name in found:
            raise ConfigError(f"{setting}: listener {name} appears twice")
        protocol = protocols.get(name)
        if name in controller_names:
            protocol = protocol or "PLAINTEXT"
        elif protocol is None:
            raise ConfigError(f"{setting}={entry}: {_MAP} has no protocol for {name}")
        elif protocol != "PLAINTEXT":
            raise ConfigError(
                f"{setting}={entry}: protocol {protocol} is not served yet, only PLAINTEXT"
            )
        found[name] = Listener(name, host, port, protocol)
    return list(found.values())


def _split_address(setting: str, entry: str) -> tuple[str, str, int]:
    name, scheme_end, address = entry.partition("://")
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    well_formed = (
        scheme_end
        and colon
        and name.strip()
        and port.isascii()
        and port.isdigit()
        and (bracketed or not set(host) & set(":[]/@ "))
    )
    if not well_formed:
        raise ConfigError(
            f"{setting}={entry}: expected NAME://host:port, with an IPv6 host in brackets"
        )
    if len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"{setting}={entry}: expected a port from 0 to 65535")
    return name.strip().upper(), host[1:-1] if bracketed else host, int(port)


def refuse_shared_ports(listeners: Iterable[Listener]) -> None:
    """One port per listener, except that an IPv4 and an IPv6 address may share one."""
    by_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        others = by_port.setdefault(listener.port, [])
        for other in others:
            one_of_each = bool(other.host and listener.host) and (
                (":" in other.host) != (":" in listener.host)
            )
            if listener.port != 0 and not one_of_each:
                raise ConfigError(f"listeners: {other} and {listener} have the same port")
        others.append(listener)
