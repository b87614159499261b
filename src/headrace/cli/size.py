"""``headrace size``: how many partitions, brokers and machines a load needs."""

from math import ceil
from typing import Annotated

import typer

from headrace.cli import output, values
from headrace.cli.options import Format, OutputFormat, examples
from headrace.cli.sizing import Load, Sizing, size_cluster


def register(root: typer.Typer) -> None:
    root.command(
        "size",
        no_args_is_help=True,
        epilog=examples(
            "headrace size --in 20 --retention 7d",
            "headrace size --in 300 --retention 3d --replicas 3 --readers 4 --cores 16",
        ),
    )(size)


def size(
    rate_in: Annotated[
        float,
        typer.Option(
            "--in",
            metavar="MB/s",
            min=0.001,
            help="Mean rate of all producers together, after compression.",
        ),
    ],
    retention: Annotated[
        str,
        typer.Option("--retention", metavar="TIME", help="How long to keep records: 36h, 7d, 2w."),
    ] = "7d",
    replicas: Annotated[
        int,
        typer.Option("--replicas", metavar="N", min=1, help="Number of replicas per partition."),
    ] = 3,
    readers: Annotated[
        int,
        typer.Option(
            "--readers", metavar="N", min=0, help="Consumer groups that read all records."
        ),
    ] = 1,
    consumer_rate: Annotated[
        float,
        typer.Option(
            "--consumer-rate",
            metavar="MB/s",
            min=0.001,
            help="Rate that one consumer can process. A partition has one consumer per group.",
        ),
    ] = 10.0,
    cores: Annotated[
        int,
        typer.Option("--cores", metavar="N", min=1, help="Cores per machine."),
    ] = 4,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Estimate the size of a cluster.

    Calculates from the measurements in docs/sizing.md, without a connection to a cluster. A broker
    uses one core. A machine runs one broker per core, except for one core that the system needs.
    """
    duration_ms = values.duration_ms(retention)
    if duration_ms is None or duration_ms == 0:
        raise values.wrong(f"--retention {retention!r}: expected a time such as 36h, 7d or 2w")
    load = Load(rate_in, duration_ms / 1000, replicas, readers, consumer_rate)
    found = size_cluster(load)
    per_machine = max(1, cores - 1)
    # The replicas of a partition must be on different machines.
    machines = max(replicas, ceil(found.brokers / per_machine))
    if format is Format.JSON:
        output.document({**found._asdict(), "machines": machines})
    else:
        _show(found, machines, cores)


def _show(found: Sizing, machines: int, cores: int) -> None:
    def amount(megabytes: float) -> str:
        return values.readable_size(round(megabytes * 1_000_000))

    per_machine = ceil(found.brokers / machines)
    output.table(
        ["", "CLUSTER", "BROKER", "WHY"],
        [
            ("partitions", found.partitions, None, "consumers, and an even spread of leaders"),
            ("brokers", found.brokers, None, "processor time, with one broker down"),
            (
                "machines",
                machines,
                None,
                f"{cores} cores each, {values.counted(per_machine, 'broker')} on each",
            ),
            (
                "processor",
                f"{found.core_share * found.brokers:.2f} cores",
                f"{found.core_share:.2f} cores",
                "the mean; at most half a core, for peaks and catching up",
            ),
            (
                "memory",
                amount(found.memory * found.brokers),
                amount(found.memory),
                "of the processes",
            ),
            (
                "page cache",
                amount(found.page_cache * found.brokers),
                amount(found.page_cache),
                "free memory, for readers that are up to 30 s behind",
            ),
            (
                "disk",
                amount(found.disk_total),
                amount(found.disk),
                "retention on all replicas, one segment each, at most 75 % full",
            ),
            (
                "network in",
                f"{found.network_in * found.brokers:,.1f} MB/s",
                f"{found.network_in:,.1f} MB/s",
                "producers and replication",
            ),
            (
                "network out",
                f"{found.network_out * found.brokers:,.1f} MB/s",
                f"{found.network_out:,.1f} MB/s",
                "replication and readers",
            ),
        ],
    )
    if found.brokers > machines:
        output.note(
            "Several brokers on one machine: give all of them the same broker.rack, so that "
            "replicas are on different machines."
        )
