"""Requests that librdkafka has no call for: some settings, groups of both protocols, transactions.

Each request opens its own connection, without TLS or SASL. If the user asks for either, the
command is refused.
"""

import socket
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

from headrace.cli import values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, code_name, parsed_address
from headrace.cli.output import CommandFailed
from headrace.model.errors import PeerBroken
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_request, parse_response_header
from headrace.wire.schema import Message, decoder

_SIZE = Struct(">i")
_SET, _DELETE = 0, 1
# The newest flexible version that Kafka 3.0 supports.
_FIND_COORDINATOR_VERSION = 4

GROUP, TRANSACTION = 0, 1  # the kinds of coordinators
Address = tuple[str, int]

Answer = TypeVar("Answer", bound=Message)


class Described(NamedTuple):
    """One setting, as DescribeConfigs returns it."""

    name: str
    value: str | None
    source: int
    is_sensitive: bool
    is_read_only: bool


def read_settings(
    connection: Connection, resource_type: int, resource_name: str
) -> list[Described]:
    request = m.DescribeConfigsRequest(
        resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource_type, resource_name=resource_name, configuration_keys=None
            )
        ]
    )
    with _connected(connection, resource_name) as link:
        answer = _ask(link, ApiKey.DESCRIBE_CONFIGS, 4, request, m.DescribeConfigsResponse)
    result = answer.results[0]
    _check(result.error_code, result.error_message)
    return [
        Described(entry.name, entry.value, entry.config_source, entry.is_sensitive, entry.read_only)
        for entry in result.configs
    ]


def change_settings(
    connection: Connection,
    resource_type: int,
    resource_name: str,
    changes: Sequence[tuple[str, str | None]],
) -> None:
    """Set each name to its value; None removes the setting, so that the inherited value applies."""
    kind = m.IncrementalAlterConfigsRequest
    request = kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=resource_name,
                configs=[
                    kind.AlterableConfig(
                        name=name,
                        config_operation=_DELETE if value is None else _SET,
                        value=value,
                    )
                    for name, value in changes
                ],
            )
        ]
    )
    with _connected(connection, resource_name) as link:
        answer = _ask(
            link, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request, m.IncrementalAlterConfigsResponse
        )
    result = answer.responses[0]
    _check(result.error_code, result.error_message)


def ask(
    connection: Connection,
    address: Address,
    api_key: int,
    api_version: int,
    request: Message,
    answer_class: type[Answer],
) -> Answer:
    """Send one request to one broker and return its response."""
    with _opened(connection, address) as link:
        return _ask(link, api_key, api_version, request, answer_class)


def coordinator_of(connection: Connection, kind: int, key: str) -> tuple[int, Address]:
    """The ID and address of the coordinator of a group or a transactional ID."""
    answer = ask(
        connection,
        next(iter(connection.brokers().values())),
        ApiKey.FIND_COORDINATOR,
        _FIND_COORDINATOR_VERSION,
        m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]),
        m.FindCoordinatorResponse,
    )
    (found,) = answer.coordinators
    if found.error_code:
        raise CommandFailed(f"cannot find the coordinator of {key}: {code_name(found.error_code)}")
    return found.node_id, (found.host, found.port)


def _connected(connection: Connection, resource_name: str) -> socket.socket:
    """A connection to the named broker, which loggers require; otherwise to the first broker."""
    require_plaintext(connection)
    brokers = connection.brokers()
    address = brokers.get(resource_name) or parsed_address(connection.bootstrap.split(",")[0])
    if resource_name and resource_name not in brokers:
        raise CommandFailed(
            f"broker {resource_name} does not exist; the cluster has {', '.join(sorted(brokers))}"
        )
    return _opened(connection, address)


def require_plaintext(connection: Connection) -> None:
    """Refuse TLS and SASL before a connection fails with an obscure error."""
    if (connection.setting("security.protocol") or "plaintext").lower() != "plaintext":
        raise values.wrong(
            "this command supports PLAINTEXT listeners only; with security.protocol set, use "
            "Kafka's own kafka-configs or kafka-transactions"
        )


def _opened(connection: Connection, address: Address) -> socket.socket:
    require_plaintext(connection)
    try:
        return socket.create_connection(address, ANSWER_TIMEOUT_S)
    except OSError as failure:
        raise CommandFailed(
            f"cannot reach broker at {address[0]}:{address[1]}: {failure.strerror or failure}"
        ) from None


def _ask(
    link: socket.socket,
    api_key: int,
    api_version: int,
    request: Message,
    answer_class: type[Answer],
) -> Answer:
    try:
        link.sendall(encode_request(api_key, api_version, 1, "headrace-cli", request))
        (size,) = _SIZE.unpack(_exactly(link, _SIZE.size))
        body = _exactly(link, size)
        _, position = parse_response_header(body, 0, len(body), api_key, api_version)
        answer, _ = decoder(answer_class, api_version)(body, position, len(body))
    except (OSError, PeerBroken) as failure:
        raise CommandFailed(f"invalid response from the broker: {failure}") from None
    return answer


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise PeerBroken(f"connection closed after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)


def _check(error_code: int, message: str | None = None) -> None:
    if error_code:
        name = code_name(error_code)
        raise CommandFailed(f"{name}: {message}" if message else name)
