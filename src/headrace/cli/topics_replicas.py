"""``headrace topics alter --replication-factor``: more or fewer replicas for a topic."""

from headrace.cli import output, reassignment_run, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection
from headrace.cli.options import Format
from headrace.cli.partitions import no_such_topic
from headrace.cli.reassignment_plan import NotEnoughBrokers, spread
from headrace.cli.reassignment_requests import settled_snapshot
from headrace.cli.reassignment_tables import as_document


def change_factor(
    connection: Connection, topic: str, factor: int, rate: int | None, format: Format
) -> None:
    """Reassign the topic's partitions, and wait for it. Run again, it goes on."""
    with open_cluster(connection) as cluster:
        now = settled_snapshot(cluster)
        chosen = [one for one in now.assigned if one[0] == topic]
        if not chosen:
            raise output.CommandFailed(no_such_topic(connection, topic))
        # What an interrupted run has begun already goes on as it was.
        begun = {
            one: moving.target
            for one, moving in now.reassigning.items()
            if one[0] == topic and len(moving.target) == factor
        }
        fresh = [one for one in chosen if one not in begun and len(now.assigned[one]) != factor]
        try:
            targets = spread(
                now.assigned, fresh, list(now.view.brokers), now.racks, factor=factor, moves=False
            )
        except NotEnoughBrokers as failure:
            raise output.CommandFailed(f"{failure}. Start more brokers first") from None
        targets |= begun
        reassignment_run.check_in_progress(now, targets)
        todo = reassignment_run.planned(cluster, now, targets)
        reassignment_run.run_moves(
            cluster,
            now,
            todo,
            rate,
            topics=[topic],
            waits=True,
            how_to_cancel="headrace reassign cancel --all",
        )
    if format is Format.JSON:
        output.document(
            {"topic": topic, "replication_factor": factor, "moves": list(map(as_document, todo))}
        )
    elif todo:
        changed = values.counted(len(todo), "partition")
        output.line(f"{topic} has {factor} replica(s) per partition now; {changed} changed")
    else:
        output.line(f"{topic} has {factor} replica(s) per partition already")
