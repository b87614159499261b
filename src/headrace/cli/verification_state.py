"""The file in which ``headrace verify-replicas`` keeps its progress, to continue after a stop.

It names the cluster, and for each partition that was begun: the topic's ID, the next offset to
compare, whether the partition is done, and what was found. It is replaced as a whole, so a killed
command leaves the last complete state. When a run is complete, the file is deleted.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.cli import values
from headrace.cli.output import reason
from headrace.cli.replica_comparison import Difference
from headrace.cli.replica_fetching import ReplicaPlaces
from headrace.cli.verification import Skipped

_VERSION = 1


class Progress(NamedTuple):
    """How far one partition was compared."""

    topic_id: str
    next_offset: int = 0
    is_done: bool = False
    differences: Sequence[Difference] = ()
    skipped: Sequence[Skipped] = ()


class VerificationState:
    """Without a file, the state lives as long as the command."""

    def __init__(self, cluster_id: str, file: Path | None) -> None:
        self._cluster_id = cluster_id
        self._file = file
        self._partitions: dict[str, Progress] = {}
        if file is not None and file.exists():
            self._partitions = _read(file, cluster_id)

    @property
    def is_continued(self) -> bool:
        return bool(self._partitions)

    def of(self, place: ReplicaPlaces) -> Progress:
        """Progress of an earlier run; none if the topic was created again since."""
        found = self._partitions.get(place.name)
        topic_id = place.topic_id.hex()
        return found if found is not None and found.topic_id == topic_id else Progress(topic_id)

    def note(self, place: ReplicaPlaces, progress: Progress) -> None:
        self._partitions[place.name] = progress

    def save(self) -> None:
        if self._file is None:
            return
        document = {
            "version": _VERSION,
            "cluster_id": self._cluster_id,
            "partitions": {
                name: {
                    **one._asdict(),
                    "differences": [difference._asdict() for difference in one.differences],
                    "skipped": [skipped._asdict() for skipped in one.skipped],
                }
                for name, one in self._partitions.items()
            },
        }
        temporary = self._file.with_name(f"{self._file.name}.tmp")
        try:
            temporary.write_text(json.dumps(document))
            temporary.replace(self._file)
        except OSError as failure:
            raise values.wrong(f"--state {self._file}: {reason(failure)}") from None

    def delete(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def _read(file: Path, cluster_id: str) -> dict[str, Progress]:
    try:
        document: Any = json.loads(file.read_text())
        version, of_cluster = document["version"], document["cluster_id"]
        partitions = {name: _progress(one) for name, one in document["partitions"].items()}
    except OSError as failure:
        raise values.wrong(f"--state {reason(failure)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise values.wrong(
            f"--state {file}: not a state file of verify-replicas; delete it to start over"
        ) from None
    if version != _VERSION:
        raise values.wrong(
            f"--state {file} has version {version}; this Headrace knows {_VERSION}. Delete the "
            "file to start over"
        )
    if of_cluster != cluster_id:
        raise values.wrong(
            f"--state {file} belongs to cluster {of_cluster}, not to {cluster_id}; "
            "name another file"
        )
    return partitions


def _progress(one: dict[str, Any]) -> Progress:
    return Progress(
        one["topic_id"],
        int(one["next_offset"]),
        bool(one["is_done"]),
        [Difference(**difference) for difference in one["differences"]],
        [Skipped(**skipped) for skipped in one["skipped"]],
    )
