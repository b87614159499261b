"""Requests that librdkafka has no call for: settings, groups, transactions, the whole cluster.

``open_cluster`` supports TLS and SASL. The other requests use PLAINTEXT connections of their own;
with TLS or SASL in the client settings, the command fails and says so.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from headrace.cli import values
from headrace.cli.client import (
    ANSWER_TIMEOUT_S,
    Connection,
    code_name,
    no_such_broker,
    parsed_address,
)
from headrace.cli.client_security import security_of
from headrace.cli.output import CommandFailed
from headrace.client import blocking
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import ClientError, Disconnected
from headrace.model.settings.resources import AlterOperation
from headrace.wire import messages as m
from headrace.wire.schema import Message

_DESCRIBE_CONFIGS_VERSION = 4
_INCREMENTAL_ALTER_CONFIGS_VERSION = 1
_SET, _DELETE = 0, 1
# The newest flexible version that Kafka 3.0 and later serve.
_FIND_COORDINATOR_VERSION = 4

_GROUP = 0  # a key type of FindCoordinator
Address = tuple[str, int]

Answer = TypeVar("Answer", bound=Message)


class Described(NamedTuple):
    """One setting from a DescribeConfigs response."""

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
    address = _address_for(connection, resource_name)
    answer = ask(connection, address, _DESCRIBE_CONFIGS_VERSION, request, m.DescribeConfigsResponse)
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
    """Set each name to its value; None restores the inherited value."""
    kind = m.IncrementalAlterConfigsRequest
    operation = AlterOperation
    request = kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=resource_name,
                configs=[
                    kind.AlterableConfig(
                        name=name,
                        config_operation=operation.DELETE if value is None else operation.SET,
                        value=value,
                    )
                    for name, value in changes
                ],
            )
        ]
    )
    answer = ask(
        connection,
        _address_for(connection, resource_name),
        _INCREMENTAL_ALTER_CONFIGS_VERSION,
        request,
        m.IncrementalAlterConfigsResponse,
    )
    result = answer.responses[0]
    _check(result.error_code, result.error_message)


def ask(
    connection: Connection,
    address: Address,
    api_version: int,
    request: Message,
    answer_class: type[Answer],
) -> Answer:
    """Send one request to one broker and return the response."""
    require_plaintext(connection)
    try:
        with blocking.Connection(
            *address, client_id="headrace-cli", versions={}, timeout_s=ANSWER_TIMEOUT_S
        ) as link:
            return link.request(request, answer_class, api_version=api_version)
    except Disconnected as failure:
        raise CommandFailed(str(failure)) from None


@contextlib.contextmanager
def open_cluster(connection: Connection) -> Iterator[Cluster]:
    """A client that finds the controller and every broker; its errors end the command."""
    security = security_of(connection.settings)
    connection.reach()
    addresses = [parsed_address(text) for text in connection.bootstrap.split(",")]
    timeout_ms = round(ANSWER_TIMEOUT_S * 1000)
    cluster = Cluster(
        ClientSettings(
            ",".join(f"[{host}]:{port}" for host, port in addresses),
            security=security,
            client_id="headrace-cli",
            request_timeout_ms=timeout_ms,
            api_timeout_ms=timeout_ms,
        )
    )
    try:
        yield cluster
    except ClientError as failure:
        raise CommandFailed(str(failure)) from None
    finally:
        cluster.close()


def group_coordinator(connection: Connection, group: str) -> Address:
    """The address of the coordinator. The broker creates ``__consumer_offsets`` if needed."""
    answer = ask(
        connection,
        next(iter(connection.brokers().values())),
        _FIND_COORDINATOR_VERSION,
        m.FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=[group]),
        m.FindCoordinatorResponse,
    )
    (found,) = answer.coordinators
    if found.error_code:
        name = code_name(found.error_code)
        raise CommandFailed(f"cannot find the coordinator of {group}: {name}")
    return found.host, found.port


def _address_for(connection: Connection, broker: str) -> Address:
    """The address of the named broker; of the first bootstrap server if ``broker`` is empty."""
    require_plaintext(connection)
    brokers = connection.brokers()
    if not broker:
        return parsed_address(connection.bootstrap.split(",")[0])
    if broker not in brokers:
        raise no_such_broker(broker, brokers)
    return brokers[broker]


def require_plaintext(connection: Connection) -> None:
    """Fail early, before the broker closes the connection without a reason."""
    if (connection.setting("security.protocol") or "plaintext").lower() != "plaintext":
        raise values.wrong(
            "this command supports PLAINTEXT listeners only; use Kafka's own scripts with this "
            "cluster"
        )


def _check(error_code: int, message: str | None = None) -> None:
    if error_code:
        name = code_name(error_code)
        raise CommandFailed(f"{name}: {message}" if message else name)
