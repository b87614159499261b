"""``headrace configs``: get and change the settings of topics, brokers, loggers and groups."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headrace.cli import broker_requests, output, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, no_such_broker, properties_of
from headrace.cli.log_lines import KAFKA_LEVEL_NAMES
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
    noun,
)
from headrace.cli.partitions import no_such_topic
from headrace.model.settings import resources

app = noun(
    "Get and set the settings of topics and brokers.",
    "headrace configs get topic orders --changed",
    "headrace configs set topic orders retention.ms=86400000",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="configs")


class Kind(StrEnum):
    """The resource types that can be named, under the names of ``resources.ResourceType``."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"
    GROUP = "group"


class Setting(NamedTuple):
    name: str
    value: str | None  # None if unset or sensitive
    source: str
    is_default: bool
    is_sensitive: bool
    is_read_only: bool


# The name of the cluster-wide default of broker settings.
EVERY_BROKER = "default"

Of = Annotated[
    Kind,
    typer.Argument(metavar="KIND", help="One of topic, broker, broker-logger and group."),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the topic or group, or ID of the broker; broker 'default' means all brokers.",
    ),
]


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace configs get topic orders",
        "headrace configs get topic orders retention.ms segment.bytes",
        "headrace configs get broker 1 --changed",
        "headrace configs get broker-logger 1",
    ),
)
def get(
    kind: Of,
    name: Name,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Settings to show; all if none is given."),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that differ from the default.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show settings with their values and sources."""
    connection = Connection(bootstrap, settings, client_file)
    found = read(connection, kind, name)
    missing = [key for key in keys or () if key not in found]
    rows = [
        found[key]
        for key in (keys or sorted(found))
        if key in found and not (changed and found[key].is_default)
    ]
    if format is Format.JSON:
        output.document(
            [
                {
                    "key": row.name,
                    "value": row.value,
                    "source": row.source,
                    "sensitive": row.is_sensitive,
                    "read_only": row.is_read_only,
                }
                for row in rows
            ]
        )
    else:
        output.table(
            ["KEY", "VALUE", "SOURCE"],
            [(row.name, "(secret)" if row.is_sensitive else row.value, row.source) for row in rows],
        )
    for key in missing:
        output.error(f"{kind} {name} has no setting {key}")
    if missing:
        output.leave(output.FAILED)


@app.command(
    "set",
    no_args_is_help=True,
    epilog=examples(
        "headrace configs set topic orders retention.ms=86400000 cleanup.policy=compact",
        "headrace configs set topic orders --file settings.properties",
        "headrace configs set broker default log.retention.ms=3600000",
        "headrace configs set broker-logger 1 headrace.compaction=DEBUG",
    ),
)
def set_values(
    kind: Of,
    name: Name,
    assignments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", hidden=True)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Properties file with settings to change."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Remove this setting in the same request."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Change settings. Settings that are not named keep their values."""
    wanted = {} if file is None else properties_of(file)
    wanted |= values.pairs(assignments or (), "setting")
    if not wanted and not unset:
        raise values.wrong("name a setting: KEY=VALUE, or --file FILE")
    changes: list[tuple[str, str | None]] = []
    for key, value in wanted.items():
        is_level = kind is Kind.BROKER_LOGGER
        changes.append((key, KAFKA_LEVEL_NAMES.get(value, value) if is_level else value))
    changes.extend((key, None) for key in unset or ())
    _change(Connection(bootstrap, settings, client_file), kind, name, changes, format)


@app.command(
    "unset",
    no_args_is_help=True,
    epilog=examples("headrace configs unset topic orders retention.ms cleanup.policy"),
)
def unset_values(
    kind: Of,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", hidden=True)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Remove settings, so that inherited values apply again.

    A topic inherits from the broker, a broker from its configuration file and the defaults.
    """
    changes: list[tuple[str, str | None]] = [(key, None) for key in keys]
    _change(Connection(bootstrap, settings, client_file), kind, name, changes, format)


def read(connection: Connection, kind: Kind, name: str) -> dict[str, Setting]:
    """The settings of one resource, by name."""
    if _needs_own_request(kind, name):
        described_settings = broker_requests.read_settings(
            connection, resources.ResourceType[kind.name], _resource_name(kind, name)
        )
        return {
            entry.name: Setting(
                entry.name,
                entry.value,
                _source_name(entry.source),
                entry.source == resources.ConfigSource.DEFAULT_CONFIG,
                entry.is_sensitive,
                entry.is_read_only,
            )
            for entry in described_settings
        }
    resource = ConfigResource(ResourceType[kind.name], name)
    try:
        futures = _admin(connection, kind, name).describe_configs(
            [resource], request_timeout=ANSWER_TIMEOUT_S
        )
        described = connection.answer(futures[resource], f"{kind} {name}")
    except KafkaException as failure:
        raise _failed(connection, failure, kind, name) from None
    return {
        entry.name: Setting(
            entry.name,
            entry.value,
            # The client returns the plain number.
            _source_name(entry.source),
            entry.is_default,
            entry.is_sensitive,
            entry.is_read_only,
        )
        for entry in described.values()
    }


def _failed(
    connection: Connection, failure: KafkaException, kind: Kind, name: str
) -> output.CommandFailed:
    if failure.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return output.CommandFailed(no_such_topic(connection, name))
    return connection.failed(failure, f"{kind} {name}")


def _source_name(number: int) -> str:
    try:
        return resources.ConfigSource(number).name
    except ValueError:
        return "UNKNOWN"


def _change(
    connection: Connection,
    kind: Kind,
    name: str,
    changes: Sequence[tuple[str, str | None]],
    format: Format,
) -> None:
    _check_unset(connection, kind, name, [key for key, value in changes if value is None])
    if _needs_own_request(kind, name):
        broker_requests.change_settings(
            connection, resources.ResourceType[kind.name], _resource_name(kind, name), changes
        )
    else:
        resource = ConfigResource(
            ResourceType[kind.name],
            name,
            incremental_configs=[
                ConfigEntry(
                    key,
                    value,
                    incremental_operation=(
                        AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                    ),
                )
                for key, value in changes
            ],
        )
        futures = _admin(connection, kind, name).incremental_alter_configs(
            [resource], request_timeout=ANSWER_TIMEOUT_S
        )
        try:
            connection.answer(futures[resource], f"{kind} {name}")
        except KafkaException as failure:
            raise _failed(connection, failure, kind, name) from None
    if format is Format.JSON:
        output.document(
            {
                "kind": kind,
                "name": name,
                "set": {key: value for key, value in changes if value is not None},
                "unset": [key for key, value in changes if value is None],
            }
        )
    else:
        output.table(
            ["KEY", "VALUE", "STATUS"],
            [(key, value, "unset" if value is None else "set") for key, value in changes],
        )


def _check_unset(connection: Connection, kind: Kind, name: str, keys: Sequence[str]) -> None:
    """Refuse unknown names: the broker would ignore them, and a typo would look like success."""
    if not keys or (kind is Kind.BROKER and name == EVERY_BROKER):
        return  # the cluster-wide default lists only settings that are set
    found = read(connection, kind, name)
    missing = [key for key in keys if key not in found]
    if missing:
        raise output.CommandFailed(f"{kind} {name} has no setting {', '.join(missing)}")


def _needs_own_request(kind: Kind, name: str) -> bool:
    return kind is Kind.BROKER_LOGGER or (kind is Kind.BROKER and name == EVERY_BROKER)


def _resource_name(kind: Kind, name: str) -> str:
    # On the wire, the cluster-wide default is the broker with an empty name.
    return "" if kind is Kind.BROKER and name == EVERY_BROKER else name


def _admin(connection: Connection, kind: Kind, name: str) -> AdminClient:
    """The client, after a check that the broker exists: it would wait long for a missing one."""
    if kind is Kind.BROKER:
        brokers = connection.brokers()
        if name not in brokers:
            raise no_such_broker(name, brokers)
    return connection.admin()
