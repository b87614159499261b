"""The state directory of a pipeline: lock, recorded declaration, checkpoints, stop flag.

    _pipelines/<pipeline>/lock            held while the pipeline runs
                          state.json      the declaration and the query IDs of the last run
                          stop            asks the run to end
                          cleaned         its age is that of the last upkeep of the tables
                          queries/id.json              the ID of all this; new if queries start over
                          queries/<name>/checkpoint    Spark's, with the ID of the query
                                        /inputs        versions of other queries' tables, by batch

The ID of a query is in its checkpoint and in state.json. A checkpoint that is gone cannot be told
from a query that never ran, and a new query would write all rows again under a new ID. So it is
refused where state.json knows an ID.

``_pipelines`` is in the warehouse, or elsewhere with ``--state``.
"""

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.pipeline.errors import RunRefused

_PINS_KEPT = 2


class PipelineDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises RunRefused if another process or run holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise RunRefused(
                    f"process {lock.read().strip() or 'unknown'} runs the pipeline "
                    f"{self.path.name} already. Stop it with `headrace pipeline stop`, or use "
                    "another --warehouse"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def is_running(self) -> bool:
        try:
            with (self.path / "lock").open("a+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    # --- the last run -----------------------------------------------------------------------

    def recorded(self) -> dict[str, Any] | None:
        """What the last run recorded; None if there was none."""
        try:
            found: dict[str, Any] = json.loads((self.path / "state.json").read_text())
        except FileNotFoundError:
            return None
        return found

    def record(self, declaration: Mapping[str, Any], query_ids: Mapping[str, str]) -> None:
        _write(self.path / "state.json", {"declaration": declaration, "queries": query_ids})

    # --- queries ----------------------------------------------------------------------------

    def checkpoint(self, query: str) -> Path:
        return self.path / "queries" / query / "checkpoint"

    def query_id(self, query: str) -> str | None:
        """The ID in the checkpoint; None without a checkpoint."""
        try:
            found: str = json.loads((self.checkpoint(query) / "metadata").read_text())["id"]
        except FileNotFoundError:
            return None
        return found

    def ensure_query_id(self, query: str) -> str:
        """The ID in the checkpoint, drawn if there is none. Spark finds it there."""
        found = self.query_id(query)
        if found is None:
            found = str(uuid.uuid4())
            self.checkpoint(query).mkdir(parents=True, exist_ok=True)
            _write(self.checkpoint(query) / "metadata", {"id": found})
        return found

    def ensure_id(self) -> str:
        """The ID of the queries, drawn if there is none."""
        path = self.path / "queries" / "id.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, {"id": str(uuid.uuid4())})
        found: str = json.loads(path.read_text())["id"]
        return found

    def last_batch(self, query: str) -> int:
        """The newest batch that Spark recorded as done; -1 if there is none."""
        return max(_numbers(self.checkpoint(query) / "commits"), default=-1)

    def offsets(self, query: str, batch: int) -> dict[str, Any]:
        """Where a batch ended, as our source wrote it."""
        lines = (self.checkpoint(query) / "offsets" / str(batch)).read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[2])
        return found

    def forget_queries(self) -> None:
        shutil.rmtree(self.path / "queries", ignore_errors=True)

    def pinned(self, query: str, batch: int, versions: Mapping[str, int]) -> dict[str, int]:
        """The versions that a batch reads: those of its first attempt."""
        directory = self.path / "queries" / query / "inputs"
        path = directory / f"{batch}.json"
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            _write(path, versions)
            for old in sorted(_numbers(directory, ".json"))[:-_PINS_KEPT]:
                (directory / f"{old}.json").unlink()
        found: dict[str, int] = json.loads(path.read_text())
        return found

    # --- stop -----------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        (self.path / "stop").touch()

    def is_asked_to_stop(self) -> bool:
        return (self.path / "stop").exists()

    def clear_stop(self) -> None:
        (self.path / "stop").unlink(missing_ok=True)


def _numbers(directory: Path, suffix: str = "") -> list[int]:
    if not directory.is_dir():
        return []
    names = (path.name.removesuffix(suffix) for path in directory.iterdir())
    return [int(name) for name in names if name.isdecimal()]


def _write(path: Path, content: object) -> None:
    """Durable before it is visible."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
