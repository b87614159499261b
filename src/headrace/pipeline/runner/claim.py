"""Which run may write the tables of a pipeline, if its state directory is not in the warehouse.

The lock of a pipeline is in its state directory. A run with another state directory knows nothing
of it, and would write all rows again under its own query IDs. So the table ``_runs`` of the
warehouse holds a row for every start of a pipeline: a number, and the ID of the state directory.
Only the state directory of the newest row may start again; another one must start over, with
``--reset`` or ``--from``. The row also tells readers how the rows of the tables merge.

The number fences runs that still write. A run checks it before each batch, and each commit to a
table carries it: a table that has seen a newer number refuses an older one.
"""

import json
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headrace.pipeline.errors import RunRefused
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.warehouse.batch import Batch, Numbered
from headrace.pipeline.warehouse.compaction import compact
from headrace.pipeline.warehouse.conditional_puts import check_conditional_puts
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.offsets import Decision
from headrace.pipeline.warehouse.storage import Location
from headrace.pipeline.warehouse.table import Table, now_ms, open_or_create, open_table

TABLE = "_runs"
_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("run", pa.int64()),
        ("state", pa.string()),
        ("host", pa.string()),
        ("directory", pa.string()),
        ("started_at", pa.timestamp("us", "UTC")),
        ("tables", pa.string()),  # key and merge rules by table, as JSON
    ]
)
FILES_MAX = 50  # each start adds one


def claim(
    warehouse: Location,
    directory: PipelineDirectory,
    declaration: Mapping[str, Any],
    *,
    takes_over: bool,
) -> Numbered:
    """Record the start of a run. Raises RunRefused if the tables belong to another state."""
    check_conditional_puts(warehouse)
    table = open_or_create(warehouse / TABLE, _SCHEMA, [])
    txn_id = _txn_id(directory)
    while True:
        table.update()
        last = table.recorded(txn_id) or 0
        if not takes_over:
            _check_owner(warehouse, directory, _row(table, directory, last))
        ours = Numbered(txn_id, last + 1)
        if _commit(table, directory, ours, declaration) is Decision.COMMIT:
            break
        # Another run started at the same time.
    if len(table.paths()) > FILES_MAX:
        compact(table)
    return ours


def claimed_tables(warehouse: Location) -> dict[str, Any]:
    """How the newest runs declare their tables, by table: key and merge rules."""
    table = open_table(warehouse / TABLE)
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(_rows(table) if table is not None else (), key=lambda row: row["run"]):
        newest[row["pipeline"]] = row
    return {
        name: rules for row in newest.values() for name, rules in json.loads(row["tables"]).items()
    }


def _rows(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.handle.to_pyarrow_dataset().to_table().to_pylist()
    return found


def _txn_id(directory: PipelineDirectory) -> str:
    return f"run/{directory.path.name}"


def _row(table: Table, directory: PipelineDirectory, number: int) -> dict[str, Any] | None:
    key = (directory.path.name, number)
    return next((row for row in _rows(table) if (row["pipeline"], row["run"]) == key), None)


def _check_owner(
    warehouse: Location, directory: PipelineDirectory, owner: dict[str, Any] | None
) -> None:
    name = directory.path.name
    cure = "Run it with --reset to compute its tables again, or with --from TIME to keep their rows"
    if owner is None and directory.recorded() is not None:
        raise RunRefused(
            f"{directory.path} is the state of {name} in another warehouse than {warehouse}. Use "
            f"another --state. {cure}"
        )
    if owner is not None and owner["state"] != directory.ensure_id():
        raise RunRefused(
            f"the tables of {name} in {warehouse} belong to the state in {owner['directory']} on "
            f"{owner['host']}. Use that directory with --state. {cure}"
        )


def _commit(
    table: Table, directory: PipelineDirectory, number: Numbered, declaration: Mapping[str, Any]
) -> Decision:
    at_ms = now_ms()
    tables = {
        name: {"key": one["key"], "merge": one["merge"]}
        for name, one in declaration["table"].items()
    }
    row = {
        "pipeline": directory.path.name,
        "run": number.number,
        "state": directory.ensure_id(),
        "host": socket.gethostname(),
        "directory": str(directory.path.parent),
        "started_at": datetime.fromtimestamp(at_ms / 1000, UTC),
        "tables": json.dumps(tables),
    }
    files = PartitionedFiles(table.location, _SCHEMA, unique_name())
    files.add((), pa.RecordBatch.from_pylist([row], _SCHEMA))
    return table.commit(Batch((), files.finish(), _SCHEMA, at_ms, numbered=number))


class ClaimCheck:
    """Tells one query whether its run is still the newest."""

    def __init__(self, warehouse: Location, ours: Numbered) -> None:
        self._warehouse = warehouse
        self._ours = ours
        self._table: Table | None = None

    def check(self) -> None:
        """Raises RunRefused if a newer run has started."""
        if self._table is None:
            self._table = open_table(self._warehouse / TABLE)
        if self._table is None:
            raise RunRefused(f"{self._warehouse / TABLE} was deleted while this run needs it")
        self._table.update()
        if (self._table.recorded(self._ours.txn_id) or 0) > self._ours.number:
            raise RunRefused(
                f"another run of {self._ours.txn_id.partition('/')[2]} has started in "
                f"{self._warehouse}, so this one ends. Nothing of this batch was written"
            )
