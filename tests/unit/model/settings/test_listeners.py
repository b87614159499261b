"""Listeners: which addresses a setting names, and which combinations are refused."""

import pytest

from headrace.model.errors import ConfigError
from headrace.model.settings.listeners import (
    Listener,
    advertised_by_default,
    check_advertised,
    check_ports,
    inter_broker_listener,
    parse_listeners,
    parse_protocol_map,
)

PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "INSIDE": "PLAINTEXT", "SSL": "SSL"}


def listener(host, port=9092, name="PLAINTEXT"):
    return Listener(name, host, port, "PLAINTEXT")


def parsed(*entries, controllers=()):
    return parse_listeners("listeners", entries, PROTOCOLS, controllers)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("PLAINTEXT://:9092", listener("")),
        ("plaintext://localhost:0", listener("localhost", 0)),
        ("INSIDE://[::1]:65535", listener("::1", 65535, "INSIDE")),
    ],
)
def test_an_address_has_a_name_a_host_and_a_port(entry, expected):
    assert parsed(entry) == [expected]
    assert parsed(str(expected)) == [expected]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (["localhost:9092"], "expected NAME://host:port"),
        (["PLAINTEXT://::1:9092"], "IPv6 host in brackets"),
        (["PLAINTEXT://a:b"], "expected NAME://host:port"),
        (["PLAINTEXT://a:65536"], "expected a port from 0 to 65535"),
        (["OTHER://a:1"], "has no protocol for OTHER"),
        (["SSL://a:1"], "listener SSL uses TLS, which is not supported. Use PLAINTEXT"),
        (["INSIDE://a:1", "inside://b:2"], "listener INSIDE appears twice"),
    ],
)
def test_an_address_that_cannot_be_opened_is_refused(entries, reason):
    with pytest.raises(ConfigError, match=reason):
        parsed(*entries)


def test_a_controller_listener_may_have_any_protocol():
    (found,) = parsed("SSL://a:1", controllers=["SSL"])
    assert found.protocol == "SSL"


def test_the_protocol_map_is_read_in_capitals():
    assert parse_protocol_map("inside:plaintext, B:SSL") == {"INSIDE": "PLAINTEXT", "B": "SSL"}
    for text in ("A", "A:TLS", "A:SSL,a:PLAINTEXT"):
        with pytest.raises(ConfigError, match="listener.security.protocol.map"):
            parse_protocol_map(text)


@pytest.mark.parametrize(
    ("hosts", "port", "allowed"),
    [
        (("127.0.0.1", "::1"), 9092, True),
        (("127.0.0.1", "127.0.0.2"), 9092, False),
        (("", "::1"), 9092, False),
        (("", ""), 0, True),
    ],
)
def test_two_listeners_share_a_port_only_on_ipv4_and_ipv6(hosts, port, allowed):
    try:
        check_ports(listener(host, port, f"L{number}") for number, host in enumerate(hosts))
        refused = False
    except ConfigError:
        refused = True
    assert refused is not allowed


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_interface_is_not_advertised(host):
    opened = [listener(host)]
    assert advertised_by_default(opened) == (listener(""),)
    with pytest.raises(
        ConfigError, match="can reach, not .*; for example [A-Z]+://host.example:9092"
    ):
        check_advertised(opened, opened)


def test_only_an_opened_listener_is_advertised():
    with pytest.raises(ConfigError, match="no listener has that name, only PLAINTEXT"):
        check_advertised([listener("a", name="INSIDE")], [listener("a")])


def test_other_brokers_use_the_listener_of_the_setting_or_of_the_protocol():
    advertised = [listener("a", name="INSIDE"), listener("a")]

    def chosen(name, *, protocol_is_given=False):
        return inter_broker_listener(
            name, "PLAINTEXT", advertised, protocol_is_given=protocol_is_given
        )

    assert chosen(None) == "PLAINTEXT"
    assert chosen("inside") == "INSIDE"
    with pytest.raises(ConfigError, match="expected one of advertised.listeners"):
        chosen("OTHER")
    with pytest.raises(ConfigError, match="are both set"):
        chosen("INSIDE", protocol_is_given=True)
