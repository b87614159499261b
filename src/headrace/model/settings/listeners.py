"""Listeners: which addresses are opened, which are advertised, which one other brokers use."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.model.errors import ConfigError
from headrace.model.settings.values import split_list

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MAP = "listener.security.protocol.map"
_EVERY_INTERFACE = ("0.0.0.0", "::")


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
    """Read ``NAME://host:port`` entries. Controller listeners may have any protocol."""
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
                f"{setting}={entry}: listener {name} uses {_protocol_name(protocol)}, which is not "
                "supported. Use PLAINTEXT"
            )
        found[name] = Listener(name, host, port, protocol)
    return list(found.values())


def _protocol_name(protocol: str) -> str:
    names = {"SSL": "TLS", "SASL_PLAINTEXT": "SASL", "SASL_SSL": "SASL and TLS"}
    return names.get(protocol, protocol)


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


def check_ports(listeners: Iterable[Listener]) -> None:
    """Refuse two listeners on one port, except one on IPv4 and one on IPv6."""
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


def advertised_by_default(opened: Iterable[Listener]) -> tuple[Listener, ...]:
    """The opened addresses. Clients cannot connect to "every interface", so that host is empty."""
    return tuple(
        listener._replace(host="") if listener.host in _EVERY_INTERFACE else listener
        for listener in opened
    )


def check_advertised(advertised: Iterable[Listener], opened: Sequence[Listener]) -> None:
    """Refuse an advertised listener that clients cannot reach or that is not opened."""
    names = [listener.name for listener in opened]
    for listener in advertised:
        if listener.host in _EVERY_INTERFACE:
            raise ConfigError(
                f"advertised.listeners={listener}: expected an address that clients can reach, "
                f"not {listener.host or 'an empty host'}; for example "
                f"{listener.name}://host.example:9092"
            )
        if listener.name not in names:
            raise ConfigError(
                f"advertised.listeners={listener}: no listener has that name, "
                f"only {', '.join(names)}"
            )


def inter_broker_listener(
    name: str | None, protocol: str, advertised: Sequence[Listener], *, protocol_is_given: bool
) -> str:
    """The name of the listener that other brokers connect to."""
    names = [listener.name for listener in advertised]
    if name is None:
        return protocol if protocol in names or not names else names[0]
    if protocol_is_given:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol are both set; "
            "remove one of them"
        )
    if name.upper() not in names:
        raise ConfigError(
            f"inter.broker.listener.name={name}: expected one of advertised.listeners: "
            + ", ".join(names)
        )
    return name.upper()
