"""``headrace brokers decommission``: move everything away from a broker, so that it can go."""

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli import output, reassignment_run, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection, no_such_broker
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
)
from headrace.cli.reassignment_plan import (
    Assignment,
    Move,
    NotEnoughBrokers,
    Partition,
    without_broker,
)
from headrace.cli.reassignment_requests import Snapshot, names, settled_snapshot, snapshot
from headrace.cli.reassignment_tables import as_document, parse_rate, show_moves
from headrace.cli.reassignment_throttles import throttled
from headrace.cli.stop import STOP_TIMEOUT_S, broker_process, end_process
from headrace.client.cluster import Cluster

# Topics that are created meanwhile may get replicas on the broker: these are moved in another
# round.
ROUNDS_MAX = 5


def decommission(
    broker_id: Annotated[int, typer.Argument(metavar="ID", help="Broker ID.", show_default=False)],
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            show_default="unlimited",
            help="Bytes per second that each broker copies for the moves: 500k, 50M.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would move, and change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Continue if too few brokers remain for all replicas, and if this broker has the "
            "only copy of a partition: that partition stays, and goes offline with the broker.",
        ),
    ] = False,
    server_file: Annotated[
        str | None,
        typer.Option(
            "--stop",
            metavar="SERVER.PROPERTIES",
            help="Stop the broker afterwards: the one that runs on this machine with this file.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Move all partitions away from a broker.

    Shows the progress until all partitions have moved. If the command is interrupted, the moves
    continue; run it again to wait for them. The broker may be offline if its partitions have other
    replicas in sync. Kafka's protocol has no request that stops a broker: --stop works on the
    broker's machine only; elsewhere, the last line says what to run there.
    """
    rate = parse_rate(throttle)
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        now = snapshot(cluster)
        if broker_id not in {*now.view.brokers, *now.view.missing_brokers}:
            raise no_such_broker(str(broker_id), map(str, now.view.brokers))
        if server_file is not None:
            _check_file(broker_id, server_file, is_live=broker_id in now.view.brokers)
        if dry_run:
            targets, _ = _targets(now, broker_id, force)
            show_moves(reassignment_run.planned(cluster, now, targets), format)
            return
        moved, left = _move_away(cluster, broker_id, rate, force)
        broker = snapshot(cluster).view.brokers.get(broker_id)
        address = None if broker is None else broker.address
    _stop(broker_id, server_file, address)
    if format is Format.JSON:
        output.document(
            {
                "broker": broker_id,
                "moves": list(map(as_document, moved)),
                "left": [{"topic": topic, "partition": number} for topic, number in left],
            }
        )
    else:
        _report(broker_id, moved, left)
        if server_file is None:
            output.note(_how_to_stop(broker_id, address))


def _move_away(
    cluster: Cluster, broker_id: int, rate: int | None, force: bool
) -> tuple[list[Move], list[Partition]]:
    """Move everything, until nothing is left but what cannot move."""
    moved: list[Move] = []
    for _ in range(ROUNDS_MAX):
        now = settled_snapshot(cluster)
        targets, left = _targets(now, broker_id, force)
        todo = reassignment_run.planned(cluster, now, targets)
        _run(cluster, now, todo, rate, broker_id)
        if not todo:
            return moved, left
        moved += todo
    targets, left = _targets(settled_snapshot(cluster), broker_id, force)
    if targets:
        raise output.CommandFailed(
            f"broker {broker_id} got new replicas while the command ran: {names(targets)}. "
            f"{values.counted(len(moved), 'partition')} moved away; the broker is not stopped. "
            "Run the same command again"
        )
    return moved, left


def _run(
    cluster: Cluster, now: Snapshot, todo: list[Move], rate: int | None, broker_id: int
) -> None:
    # A run that was killed may have moved topics, and left their throttles.
    topics = {one.topic for one in now.view.partitions}
    left_throttled = [
        topic for topic, brokers in throttled(cluster, topics).items() if broker_id in brokers
    ]
    reassignment_run.run_moves(
        cluster,
        now,
        todo,
        rate,
        topics=left_throttled,
        waits=True,
        how_to_cancel="headrace reassign cancel --all",
    )


def _report(
    broker_id: int,
    moved: Sequence[object],
    left: Sequence[Partition],
) -> None:
    output.line(f"Moved {values.counted(len(moved), 'partition')} away from broker {broker_id}")
    if left:
        output.line(f"Left behind, because nobody else has them: {names(left)}")
    else:
        output.line(f"Broker {broker_id} has no replicas")


def _targets(now: Snapshot, broker_id: int, force: bool) -> tuple[Assignment, list[Partition]]:
    """The new replicas of the broker's partitions, and the partitions that cannot move."""
    live = now.view.brokers
    assigned = now.assigned
    # An operator may have begun to fill the broker.
    coming = [one for one, moving in now.reassigning.items() if broker_id in moving.added]
    if coming:
        raise output.CommandFailed(
            f"{names(coming)}: being moved to broker {broker_id}. Cancel that first with "
            "'headrace reassign cancel --all'"
        )
    stuck = _stuck(now, broker_id)
    if stuck and not force:
        raise output.CommandFailed(
            f"{names(stuck)}: no live replica is in sync, so nothing can be copied. Start their "
            "brokers first. With --force these partitions are left behind and stay offline"
        )
    # What an interrupted run has begun goes on as it was.
    begun = {
        one: moving.target for one, moving in now.reassigning.items() if broker_id in moving.removed
    }
    fresh = {one: r for one, r in assigned.items() if one not in begun and one not in stuck}
    brokers = [broker for broker in live if broker != broker_id]
    try:
        targets = without_broker(fresh, broker_id, brokers, now.racks, may_shrink=force)
    except NotEnoughBrokers as failure:
        raise output.CommandFailed(
            f"{failure}, without broker {broker_id}. Start another broker first"
            + ("" if force else ", or use --force to accept fewer replicas")
        ) from None
    _check_min_isr(now, targets, force)
    targets |= begun
    reassignment_run.check_in_progress(now, targets)
    return targets, stuck


def _stuck(now: Snapshot, broker_id: int) -> list[Partition]:
    return [
        (one.topic, one.partition)
        for one in now.view.partitions
        if broker_id in one.replicas and one.leader is None
    ]


def _check_min_isr(now: Snapshot, targets: Assignment, force: bool) -> None:
    min_isr = {(one.topic, one.partition): one.min_isr for one in now.view.partitions}
    short = [one for one, replicas in targets.items() if len(replicas) < min_isr[one]]
    if short and force:
        output.note(
            f"warning: {names(short)} will have fewer replicas than min.insync.replicas: acks=all "
            "is refused there until the setting is lowered"
        )


def _how_to_stop(broker_id: int, address: str | None) -> str:
    """What is left to do: no request of Kafka's protocol stops the process of a broker."""
    if address is None:
        return (
            f"Broker {broker_id} is offline. Do not start it again with this ID and its old disks"
        )
    host = address.rpartition(":")[0]
    return (
        f"Now stop broker {broker_id}: on {host}, run 'headrace stop SERVER.PROPERTIES' with the "
        "file that it was started with, or 'systemctl stop headrace'. Until then, new topics may "
        "get replicas on it; if they do, run this command again"
    )


def _check_file(broker_id: int, server_file: str, *, is_live: bool) -> None:
    """Refuse the file of another broker or another machine before anything moves."""
    process, found = broker_process(server_file)
    if process is not None:
        process.close()
    if found != broker_id:
        whose = "has no broker ID yet" if found is None else f"is the file of broker {found}"
        raise values.wrong(f"--stop {server_file} {whose}, not of broker {broker_id}")
    if process is None and is_live:
        raise output.CommandFailed(
            f"--stop {server_file}: no running broker found on this machine. Run the command on "
            f"the machine of broker {broker_id}, or leave out --stop; nothing was moved"
        )


def _stop(broker_id: int, server_file: str | None, address: str | None) -> None:
    if server_file is None:
        return
    process, _ = broker_process(server_file)
    if process is None:
        output.note(f"Broker {broker_id} does not run on this machine any more")
        return
    try:
        end_process(process, STOP_TIMEOUT_S)
    except output.CommandFailed as failure:
        raise output.CommandFailed(
            f"broker {broker_id} has no replicas any more, but it was not stopped: {failure}. "
            f"{_how_to_stop(broker_id, address)}"
        ) from None
    output.note(f"Stopped process {process.process}")
