"""Addresses of brokers are read from ``bootstrap.servers``."""

import pytest

from headrace.client.cluster import parse_addresses
from headrace.model.errors import ConfigError


@pytest.mark.parametrize("text", ["nowhere", "host:", ":9092", "host:0", "host:65536", "host:x"])
def test_a_bootstrap_server_that_is_no_address_is_named(text):
    with pytest.raises(ConfigError, match=f"bootstrap.servers: '{text}' is not host:port"):
        parse_addresses(f"good:9092,{text}")


def test_addresses_are_read_from_bootstrap_servers():
    found = parse_addresses("a:1, SSL://b:2,,[::1]:3")
    assert found == [("a", 1), ("b", 2), ("::1", 3)]
    with pytest.raises(ConfigError, match="names no broker"):
        parse_addresses(" , ")
