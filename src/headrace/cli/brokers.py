"""``headrace brokers``: list and describe brokers, and move leaders or everything away from one."""

import time
from typing import Annotated

import typer

from headrace.cli import broker_requests, output, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.brokers_api_versions import api_versions
from headrace.cli.brokers_decommission import decommission
from headrace.cli.client import Connection, code_name, no_such_broker
from headrace.cli.cluster_view import ClusterView, numbers, read_view
from headrace.cli.log_dirs import LogDir, read_log_dirs
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
from headrace.client.cluster import Cluster
from headrace.client.errors import Refused
from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import ConfigSource, ResourceType
from headrace.wire import messages as m

app = noun(
    "List, describe and decommission brokers.",
    "headrace brokers list",
    "headrace brokers shutdown 2",
)

BrokerNumber = Annotated[int, typer.Argument(metavar="ID", help="Broker ID.", show_default=False)]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="brokers")


@app.command(
    "list", epilog=examples("headrace brokers list", "headrace brokers list --format json")
)
def list_brokers(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List the brokers with their leaders and replicas.

    A broker that has replicas but is not registered is listed as offline. OUT-OF-SYNC is the
    number of its replicas that are not in the ISR.
    """
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        view = read_view(cluster)
    rows = [_row(view, broker_id) for broker_id in sorted({*view.brokers, *view.missing_brokers})]
    if format is Format.JSON:
        output.document(rows)
    else:
        output.table(
            ["ID", "ADDRESS", "RACK", "STATUS", "CONTROLLER", "LEADERS", "REPLICAS", "OUT-OF-SYNC"],
            [
                list({**row, "controller": "yes" if row["controller"] else None}.values())
                for row in rows
            ],
        )


def _row(view: ClusterView, broker_id: int) -> dict[str, object]:
    broker = view.brokers.get(broker_id)
    replicas = view.replicas_on(broker_id)
    return {
        "broker": broker_id,
        "address": None if broker is None else broker.address,
        "rack": None if broker is None else broker.rack,
        "status": "offline" if broker is None else "online",
        "controller": broker_id == view.controller_id,
        "leaders": len(view.led_by(broker_id)),
        "replicas": len(replicas),
        "out_of_sync": sum(broker_id not in partition.isr for partition in replicas),
    }


@app.command(
    no_args_is_help=True,
    epilog=examples("headrace brokers describe 1", "headrace brokers describe 1 --format json"),
)
def describe(
    broker_id: BrokerNumber,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show settings, log directories and partitions of a broker.

    Shows the settings that differ from the defaults.
    """
    connection = Connection(bootstrap, settings, client_file)
    with open_cluster(connection) as cluster:
        view = read_view(cluster)
    _check_number(view, broker_id)
    broker = view.brokers[broker_id]
    log_dirs = read_log_dirs(connection, (broker.host, broker.port), None, internal=True)
    changed = {
        setting.name: "(hidden)" if setting.is_sensitive else setting.value
        for setting in broker_requests.read_settings(
            connection, ResourceType.BROKER, str(broker_id)
        )
        if setting.source != ConfigSource.DEFAULT_CONFIG
    }
    if format is Format.JSON:
        output.document(
            {
                **_row(view, broker_id),
                "settings": changed,
                "log_dirs": [
                    {"path": one.path, "error": one.error, "size": _size(one), "free": one.free}
                    for one in log_dirs
                ],
                "partitions": [
                    {
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "leads": partition.leader == broker_id,
                        "in_sync": broker_id in partition.isr,
                    }
                    for partition in view.replicas_on(broker_id)
                ],
            }
        )
    else:
        _show(view, broker_id, changed, log_dirs)


def _show(
    view: ClusterView, broker_id: int, changed: dict[str, str | None], log_dirs: list[LogDir]
) -> None:
    broker = view.brokers[broker_id]
    role = ", controller" if broker_id == view.controller_id else ""
    rack = f", rack {broker.rack}" if broker.rack else ""
    output.heading(f"Broker {broker_id} at {broker.address}{rack}{role}")
    output.table(
        ["LOG-DIRECTORY", "ERROR", "PARTITIONS", "SIZE", "FREE"],
        [
            (
                one.path,
                one.error,
                len(one.partitions),
                values.readable_size(_size(one)),
                None if one.free is None else values.readable_size(one.free),
            )
            for one in log_dirs
        ],
    )
    output.line("")
    output.table(["SETTING", "VALUE"], sorted(changed.items()))
    output.line("")
    output.table(
        ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR"],
        [
            (one.topic, one.partition, one.leader, numbers(one.replicas), numbers(one.isr))
            for one in view.replicas_on(broker_id)
        ],
    )


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace brokers shutdown 2",
        "headrace brokers shutdown 2 --num-retries 3 --retry-interval-ms 60",
    ),
)
def shutdown(
    broker_id: BrokerNumber,
    retries: Annotated[
        int,
        typer.Option(
            "--num-retries", metavar="N", min=0, help="Retries while partitions have no new leader."
        ),
    ] = 3,
    interval_ms: Annotated[
        int,
        typer.Option("--retry-interval-ms", metavar="MS", min=0, help="Time between retries."),
    ] = 1000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Move all leaderships away from a broker.

    Do this before the broker is stopped. The controller elects other leaders and gives the broker
    none until it restarts. The process keeps running; stop it with 'headrace stop' on its machine.
    A broker that is stopped cleanly does the same automatically (controlled.shutdown.enable). The
    exit status is 1 if partitions remain that no other broker can lead.
    """
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        _check_number(read_view(cluster), broker_id)
        remaining = _move_leaderships(cluster, broker_id)
        for _ in range(retries):
            if not remaining:
                break
            output.note(f"{_counted(remaining)} without another leader; retrying")
            time.sleep(interval_ms / 1000)
            remaining = _move_leaderships(cluster, broker_id)
    if format is Format.JSON:
        output.document(
            {
                "broker": broker_id,
                "remaining": [{"topic": topic, "partition": n} for topic, n in remaining],
            }
        )
    elif remaining:
        output.table(["TOPIC", "PARTITION"], remaining)
    else:
        output.line(f"Broker {broker_id} leads no partitions; it can be stopped")
    if remaining:
        output.error(
            f"broker {broker_id} still leads {_counted(remaining)}: no other replica is in sync"
        )
        output.leave(output.FAILED)


app.command(
    "decommission",
    no_args_is_help=True,
    epilog=examples(
        "headrace brokers decommission 3 --dry-run",
        "headrace brokers decommission 3 --throttle 50M",
        "headrace brokers decommission 3 --stop server-3.properties",
    ),
)(decommission)

app.command("api-versions", epilog=examples("headrace brokers api-versions"))(api_versions)


def _move_leaderships(cluster: Cluster, broker_id: int) -> list[tuple[str, int]]:
    """Ask the controller to move leaderships; the partitions that remain on the broker."""
    try:
        answer = cluster.ask_controller(
            # No broker epoch: the request is about whichever process has this ID now.
            m.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=-1),
            m.ControlledShutdownResponse,
            lambda response: [response.error_code],
            "controlled shutdown",
        )
    except Refused as failure:
        if failure.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise output.CommandFailed(
            "this broker runs without ZooKeeper, alone in its cluster: no other broker can take "
            "over its partitions. Stop it with 'headrace stop'"
        ) from None
    if answer.error_code:
        raise output.CommandFailed(
            f"controlled shutdown of broker {broker_id}: {code_name(answer.error_code)}"
        )
    return sorted((one.topic_name, one.partition_index) for one in answer.remaining_partitions)


def _counted(partitions: list[tuple[str, int]]) -> str:
    return values.counted(len(partitions), "partition")


def _size(log_dir: LogDir) -> int:
    return sum(partition.partition_size for _, partition in log_dir.partitions)


def _check_number(view: ClusterView, broker_id: int) -> None:
    if broker_id not in view.brokers:
        raise no_such_broker(str(broker_id), map(str, view.brokers))
