"""What ``headrace up`` shows of a running cluster: one row per broker, and lines about changes."""

from typing import NamedTuple

from headrace.cli import values
from headrace.cli.cluster_view import ClusterView

COLUMNS = [
    "BROKER",
    "ADDRESS",
    "PROCESS",
    "STATUS",
    "CONTROLLER",
    "LEADERS",
    "REPLICAS",
    "OUT-OF-SYNC",
]


class ProcessState(NamedTuple):
    broker_id: int
    address: str
    process_id: int
    exit_status: int | None  # None while it runs


class Status(NamedTuple):
    """``view`` is None if no broker answers."""

    processes: tuple[ProcessState, ...]
    zookeeper_runs: bool
    view: ClusterView | None

    def rows(self) -> list[tuple[object, ...]]:
        return [(*self._state(process), *self._counts(process)) for process in self.processes]

    def _state(self, process: ProcessState) -> tuple[object, ...]:
        if process.exit_status is None:
            state = "running"
        elif self.view is not None and process.broker_id in self.view.brokers:
            state = "restarted"  # by hand: as another process
        else:
            state = _ending(process.exit_status)
        return (process.broker_id, process.address, process.process_id, state)

    def _counts(self, process: ProcessState) -> tuple[object, ...]:
        if self.view is None:
            return (None, None, None, None)
        broker_id = process.broker_id
        replicas = self.view.replicas_on(broker_id)
        return (
            "yes" if broker_id == self.view.controller_id else None,
            len(self.view.led_by(broker_id)),
            len(replicas),
            sum(broker_id not in partition.isr for partition in replicas),
        )

    def summary(self) -> str:
        """One line about the whole cluster."""
        problems = [] if self.zookeeper_runs else ["ZooKeeper has ended"]
        if self.view is None:
            problems.append("no broker answers")
        else:
            offline = sum(partition.is_unavailable for partition in self.view.partitions)
            short = sum(partition.is_under_replicated for partition in self.view.partitions)
            if offline:
                problems.append(f"{values.counted(offline, 'partition')} offline")
            if short:
                problems.append(f"{values.counted(short, 'partition')} under-replicated")
        return ", ".join(problems) or "all replicas in sync"


def changes(before: Status, now: Status) -> list[str]:
    """One line per change, for output that is no terminal."""
    lines = [
        f"broker {new.broker_id} (process {new.process_id}) {_ending(new.exit_status)}"
        for old, new in zip(before.processes, now.processes, strict=True)
        if old.exit_status is None and new.exit_status is not None
    ]
    if now.view is not None and (
        before.view is None or before.view.controller_id != now.view.controller_id
    ):
        controller = now.view.controller_id
        lines.append("no controller" if controller is None else f"controller: broker {controller}")
    if before.summary() != now.summary():
        lines.append(now.summary())
    return lines


def _ending(status: int) -> str:
    if status < 0:
        return f"killed by signal {-status}"
    return f"ended with status {status}"
