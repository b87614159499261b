"""``headrace brokers api-versions``: the versions of each API that each broker serves."""

from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import output
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection
from headrace.cli.cluster_view import BrokerView, read_view
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
)
from headrace.wire import messages as m
from headrace.wire.api import api_name


def api_versions(
    plain: Annotated[
        bool, typer.Option("--plain", help="Print the format of kafka-broker-api-versions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the API versions that each broker serves."""
    request = m.ApiVersionsRequest(
        client_software_name="headrace-cli", client_software_version=__version__
    )
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        served = [
            (broker, cluster.ask(broker.broker_id, request, m.ApiVersionsResponse).api_keys)
            for broker in read_view(cluster).brokers.values()
        ]
    if plain:
        for broker, apis in served:
            _show_plain(broker, apis)
        return
    rows = [
        {
            "broker": broker.broker_id,
            "api": _name(api.api_key),
            "key": api.api_key,
            "min": api.min_version,
            "max": api.max_version,
        }
        for broker, apis in served
        for api in sorted(apis, key=lambda one: one.api_key)
    ]
    if format is Format.JSON:
        output.document(rows)
    else:
        output.table(["BROKER", "API", "KEY", "MIN", "MAX"], [list(row.values()) for row in rows])


def _show_plain(broker: BrokerView, apis: list[m.ApiVersionsResponse.ApiVersion]) -> None:
    lines = [
        f"\t{_name(api.api_key)}({api.api_key}): {api.min_version} to {api.max_version} "
        f"[usable: {api.max_version}]"
        for api in sorted(apis, key=lambda one: one.api_key)
    ]
    rack = broker.rack or "null"
    output.line(f"{broker.address} (id: {broker.broker_id} rack: {rack}) -> (")
    output.line(",\n".join(lines))
    output.line(")")


def _name(api_key: int) -> str:
    try:
        return api_name(api_key)
    except (KeyError, ValueError):
        return "UNKNOWN"
