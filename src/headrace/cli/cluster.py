"""``headrace cluster``: describe the cluster, and tell whether it is healthy."""

import typer

from headrace import __version__
from headrace.cli import health, output, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection
from headrace.cli.cluster_view import ClusterView, read_view
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
from headrace.client.errors import ClientError
from headrace.wire import messages as m

app = noun(
    "Describe the cluster and check its health.",
    "headrace cluster health",
    "headrace cluster describe",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="cluster")


@app.command(
    "health",
    epilog=examples(
        "headrace cluster health",
        "until headrace cluster health > /dev/null; do sleep 1; done",
    ),
)
def show_health(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Check controller, brokers, replicas and leaders.

    The exit status is 0 if the cluster is healthy, and 1 if a check failed or no broker was
    reached. Warnings do not change it: if leaders are not on their preferred brokers, the load is
    less even, but no data is at risk.
    """
    connection = Connection(bootstrap, settings, client_file)
    with open_cluster(connection) as cluster:
        view = read_view(cluster)
        features, unreachable = features_of(cluster, view)
    found = health.checks(view, features, unreachable)
    healthy = health.is_healthy(found)
    if format is Format.JSON:
        output.document(
            {
                "healthy": healthy,
                **_summary(view),
                "checks": [
                    {"check": check.name, "status": check.status.lower(), "items": check.items}
                    for check in found
                ],
            }
        )
    else:
        output.heading(_headline(view))
        output.table(
            ["CHECK", "STATUS", "DETAIL"],
            [(check.name, check.status, check.detail) for check in found],
        )
        output.line("The cluster is healthy." if healthy else "The cluster is NOT healthy.")
    if not healthy:
        output.leave(output.FAILED)


@app.command("id", epilog=examples("headrace cluster id"))
def show_id(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Print the cluster ID."""
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        cluster_id = cluster.metadata([]).cluster_id
    if format is Format.JSON:
        output.document({"cluster_id": cluster_id})
    else:
        output.line(f"Cluster ID: {cluster_id}")


@app.command("describe", epilog=examples("headrace cluster describe --format json"))
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show cluster ID, controller, counts and feature levels."""
    connection = Connection(bootstrap, settings, client_file)
    with open_cluster(connection) as cluster:
        view = read_view(cluster)
        features, _ = features_of(cluster, view)
    finalized = {
        name: level
        for broker in features.values()
        for name, level in sorted(broker.finalized.items())
    }
    summary = {**_summary(view), "features": finalized}
    if format is Format.JSON:
        output.document(summary)
    else:
        rows: list[tuple[str, object]] = [
            (name.replace("_", " "), value)
            for name, value in summary.items()
            if not isinstance(value, (dict, list))
        ]
        rows.append(("brokers", ", ".join(broker.address for broker in view.brokers.values())))
        rows += [(f"feature {name}", level) for name, level in finalized.items()]
        output.table(["NAME", "VALUE"], rows)


def features_of(
    cluster: Cluster, view: ClusterView
) -> tuple[dict[int, health.BrokerFeatures], dict[int, str]]:
    """The feature levels of each broker that answers, and why others do not."""
    request = m.ApiVersionsRequest(
        client_software_name="headrace-cli", client_software_version=__version__
    )
    found, unreachable = {}, {}
    for broker_id in view.brokers:
        try:
            answer = cluster.ask(broker_id, request, m.ApiVersionsResponse)
        except ClientError as failure:
            unreachable[broker_id] = str(failure)
            continue
        found[broker_id] = health.BrokerFeatures(
            {feature.name: feature.max_version for feature in answer.supported_features},
            {feature.name: feature.max_version_level for feature in answer.finalized_features},
        )
    return found, unreachable


def _summary(view: ClusterView) -> dict[str, object]:
    return {
        "cluster_id": view.cluster_id,
        "controller": view.controller_id,
        "brokers": list(view.brokers),
        "topics": len({partition.topic for partition in view.partitions}),
        "partitions": len(view.partitions),
    }


def _headline(view: ClusterView) -> str:
    topics = len({partition.topic for partition in view.partitions})
    controller = "no controller" if view.controller_id is None else f"{view.controller_id}"
    return (
        f"Cluster {view.cluster_id}: {values.counted(len(view.brokers), 'broker')}, "
        f"controller {controller}, {values.counted(topics, 'topic')}, "
        f"{values.counted(len(view.partitions), 'partition')}"
    )
