"""``headrace migrate-to-zookeeper``: make a standalone node a member of a cluster."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, values
from headrace.cli.options import examples
from headrace.cli.serve import ServeOptions, built_config


def register(root: typer.Typer) -> None:
    root.command(
        "migrate-to-zookeeper",
        epilog=examples(
            "headrace migrate-to-zookeeper server.properties",
            "headrace migrate-to-zookeeper --data data -X zookeeper.connect=127.0.0.1:2181/name",
        ),
    )(migrate_to_zookeeper)


def migrate_to_zookeeper(
    file: Annotated[
        Path | None, typer.Argument(metavar="SERVER.PROPERTIES", help="Kafka configuration file.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Data directory. [default: ./headrace-data, or log.dirs of the file]",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="Broker setting; may be repeated."),
    ] = None,
) -> None:
    """Make a standalone node a member of a cluster.

    The node must be stopped. The command copies topics, settings, leader epochs, producer ids and
    feature levels to the path in zookeeper.connect. Another cluster
    must not use that path. Records stay where they are. Then start the broker with the same
    settings.
    """
    from headrace.broker.migration import migrate_node
    from headrace.coordination.tree import TreeError
    from headrace.model.errors import ConfigError, Corrupt
    from headrace.world.world import World

    config = built_config(
        ServeOptions(
            file, None, data, values.pairs(settings or (), "-X"), False, None, None, "", "", False
        )
    )
    try:
        migrated = asyncio.run(migrate_node(config, World()))
    except (ConfigError, Corrupt, OSError, TreeError) as failure:
        raise output.CommandFailed(f"cannot migrate: {output.reason(failure)}") from None
    output.note(
        f"Cluster {migrated.cluster_id} is in ZooKeeper at {config.str('zookeeper.connect')}; "
        f"topics: {len(migrated.topics)}. Start the broker with this zookeeper.connect. Existing "
        "topics keep their number of replicas"
    )
