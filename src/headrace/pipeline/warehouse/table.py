"""The only way to commit to a Delta table: checks, rows and offsets are one commit on one handle.

A commit of deltalake fails if another commit with the same txn ID came after the version that the
handle shows. So offsets and schema are compared on the handle that commits, and a handle is
updated only before they are compared again. A failed commit may have happened. After every failure
``Table`` updates the handle, compares again, and then finds its files in the table, commits the
same files, drops them because the table has their offsets, or refuses.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.schema import Field as DeltaField
from deltalake.transaction import AddAction, RemoveAction

from headrace.pipeline.errors import (
    CommitRefused,
    LoadStopped,
    RunRefused,
    SchemaRefused,
    reason,
)
from headrace.pipeline.warehouse.batch import Batch, NewFile, Numbered, TableFile
from headrace.pipeline.warehouse.files import STATS_COLUMNS
from headrace.pipeline.warehouse.offsets import Decision, decide
from headrace.pipeline.warehouse.schema import Field, compare, fields_of
from headrace.pipeline.warehouse.storage import Location, location_of

log = logging.getLogger("headrace.pipeline")

# All rewrites of files carry it, so that two at once conflict.
FILES_TXN = "headrace/files"
# Its version is a time in milliseconds: retention may have removed rows of older records.
RETENTION_TXN = "headrace/retention"
# A checkpoint bounds what a new handle must read, and keeps the offsets.
CHECKPOINT_COMMITS = 20
# Vacuum deletes files without a commit at this age, and never below it.
ORPHAN_AGE_H_MIN = 24
_COMMIT_AGE_MS_MAX = ORPHAN_AGE_H_MIN * 3_600_000 // 2
_TRIES = 8
# Readers must know which columns have statistics: deltalake and DuckDB take a column without them
# for one of nulls, and skip the file in every query with a condition on it.
_STATS_SETTING = "delta.dataSkippingStatsColumns"
_CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    _STATS_SETTING: ",".join(STATS_COLUMNS),
}
_ROW_KEY = ("_topic_id", "_partition", "_offset")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Table:
    """One Delta table, for one thread at a time."""

    def __init__(
        self,
        location: Path | Location,
        handle: DeltaTable,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.location = location_of(location)
        self._handle = handle
        self._clock_ms = clock_ms
        # The handle takes up to 3 ms for each ID, and a table may have a thousand partitions.
        self._known: dict[str, int | None] = {}
        self._known_version = -1

    @property
    def version(self) -> int:
        return int(self._handle.version())

    @property
    def handle(self) -> DeltaTable:
        """The version that commits are compared with, for reading."""
        return self._handle

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self._handle.metadata().partition_columns)

    def fields(self) -> list[Field]:
        return fields_of(self._handle.schema().to_json())

    def next_offsets(self, txn_ids: Iterable[str]) -> dict[str, int | None]:
        """The newest offsets of these partitions, for a plan; None for one without rows."""
        self.update()
        try:
            return {txn_id: self.recorded(txn_id) for txn_id in txn_ids}
        except DeltaError:
            self._handle = _open(self.location)
            return {txn_id: self.recorded(txn_id) for txn_id in txn_ids}

    def recorded(self, txn_id: str) -> int | None:
        """The next offset of a partition in the version that the handle shows."""
        if self._known_version != self.version:
            self._known, self._known_version = {}, self.version
        if txn_id not in self._known:
            self._known[txn_id] = self._handle.transaction_version(txn_id)
        return self._known[txn_id]

    def update(self) -> None:
        """Look at the newest version. Never between a comparison and its commit."""
        try:
            self._handle.update_incremental()
        except DeltaError as outdated:
            # The log was cleaned up beyond the version that the handle shows.
            log.info("Reopening %s: %s", self.location, outdated)
            self._handle = _open(self.location)

    def commit(self, batch: Batch) -> Decision:
        """Commit a batch, or drop it as repeated. Raises CommitRefused or SchemaRefused."""
        failure: Exception | None = None
        for _ in range(_TRIES):
            if failure is not None:
                self.update()
            try:
                # A handle reads the log when it is asked, and the log may have been cleaned up.
                if failure is not None and self._happened(batch):
                    return Decision.COMMIT
                if self._decide(batch) is Decision.REPEATED:
                    return Decision.REPEATED
                added = self._new_columns(batch)
                before = self.version
                if added:
                    self._add_columns(added)
                else:
                    self._append(batch)
            except (DeltaError, OSError) as failed:
                log.info("Commit to %s failed; comparing again: %s", self.location, failed)
                failure = failed
                continue
            self.update()
            if not added:
                if before == self._known_version and self.version == before + 1:
                    # Only this commit came after the known version.
                    self._known |= batch.txns
                    self._known_version = self.version
                return Decision.COMMIT
        raise CommitRefused(
            f"could not commit to {self.location} in {_TRIES} attempts. Nothing was committed. "
            f"The last failure was: {failure and reason(failure)}"
        ) from failure

    def _happened(self, batch: Batch) -> bool:
        """Whether a commit that seemed to fail happened: only that commit adds these files."""
        return bool(batch.files) and batch.files[0].path in self.paths()

    def _decide(self, batch: Batch) -> Decision:
        if batch.claim is not None:
            self._check_claim(batch.claim)
        if batch.numbered is not None:
            newest = self.recorded(batch.numbered.txn_id)
            repeated = newest is not None and newest >= batch.numbered.number
            decision = Decision.REPEATED if repeated else Decision.COMMIT
        elif batch.spans:
            recorded = {span.txn_id: self.recorded(span.txn_id) for span in batch.spans}
            decision = decide(batch.spans, recorded)
        else:
            decision = Decision.COMMIT
        if decision is Decision.COMMIT:
            self._check_files(batch.files, batch.written_at_ms)
        return decision

    def _check_claim(self, claim: Numbered) -> None:
        newest = self.recorded(claim.txn_id)
        if newest is not None and newest > claim.number:
            raise RunRefused(
                f"another run of this pipeline writes to {self.location} since this one started. "
                "Nothing was committed"
            )

    def paths(self) -> set[str]:
        """The files of the version that the handle shows."""
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        return set(actions.column("path").to_pylist())

    def files(self) -> list[TableFile]:
        """The same, with sizes and partition values."""
        columns = self.partition_columns
        return [
            TableFile(
                file["path"],
                file["size_bytes"],
                tuple((name, _text(file[f"partition.{name}"])) for name in columns),
                file["num_records"],
                tuple(file.get(f"min.{name}") for name in _ROW_KEY),
                tuple(file.get(f"max.{name}") for name in _ROW_KEY),
                file["modification_time"],
                tuple(file.get(f"null_count.{name}") for name in _ROW_KEY),
            )
            for file in pa.table(self._handle.get_add_actions(flatten=True)).to_pylist()
        ]

    def damaged_files(self) -> dict[str, str]:
        """By path: what is wrong with files that are missing or have another size.

        Their content is not read. Only in a directory: elsewhere each file would be a request.
        """
        files = self.files() if self.location.is_directory else []
        return dict(self._wrong_sizes(files))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of the version that the handle shows. Raises LoadStopped."""
        try:
            rows: pa.Table = self._handle.to_pyarrow_dataset().to_table(columns=columns)
        except (DeltaError, OSError, pa.ArrowException) as broken:
            raise LoadStopped(
                f"a file of {self.location} cannot be read: {reason(broken)}. Restore the file"
            ) from broken
        return rows

    def file_schema(self) -> pa.Schema:
        """The columns of a file: those of the table without the partition columns."""
        schema = pa.schema(self._handle.schema().to_arrow())
        return pa.schema([field for field in schema if field.name not in self.partition_columns])

    def rewrite(
        self,
        removed: Sequence[TableFile],
        added: Sequence[NewFile],
        written_at_ms: int,
        loaded: Mapping[str, int] | None = None,
        *,
        removed_until_ms: int | None = None,
    ) -> bool:
        """Replace files by others; False if the table no longer has the old ones.

        ``loaded`` are the next offsets of the partitions that a reload replaces; they must not
        have moved meanwhile. Retention says until which time of the records it removed rows.
        Otherwise the new files hold the same rows.
        """
        failure: Exception | None = None
        for _ in range(_TRIES):
            if failure is not None:
                self.update()
            try:
                present = self.paths()
                if any(self.recorded(name) != end for name, end in (loaded or {}).items()):
                    return bool(added) and added[0].path in present
                if not present.issuperset(file.path for file in removed):
                    # Another rewrite came first, or ours happened and its outcome was unknown.
                    return bool(added) and added[0].path in present
                self._check_files(added, written_at_ms)
                self._replace(removed, added, loaded, removed_until_ms)
            except (DeltaError, OSError) as failed:
                log.info("Rewrite of %s failed; comparing again: %s", self.location, failed)
                failure = failed
                continue
            self.update()
            return True
        raise CommitRefused(
            f"could not replace files of {self.location} in {_TRIES} attempts. Nothing was "
            f"changed. The last failure was: {failure and reason(failure)}"
        ) from failure

    def _replace(
        self,
        removed: Sequence[TableFile],
        added: Sequence[NewFile],
        loaded: Mapping[str, int] | None,
        removed_until_ms: int | None,
    ) -> None:
        now = self._clock_ms()
        changes_rows = removed_until_ms is not None or loaded is not None
        txns = [Transaction(FILES_TXN, (self.recorded(FILES_TXN) or 0) + 1)]
        if removed_until_ms is not None:
            until_ms = max(removed_until_ms, self.recorded(RETENTION_TXN) or 0)
            txns.append(Transaction(RETENTION_TXN, until_ms))
        txns += [Transaction(name, end) for name, end in (loaded or {}).items()]
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(
                file.path,
                data_change=changes_rows,
                deletion_timestamp=now,
                size=file.size,
                partition_values=dict(file.partition_values),
            )
            for file in removed
        ]
        # Joined files keep the time of their rows, which `status` shows.
        loaded_ms = now if changes_rows else max((file.loaded_ms for file in removed), default=now)
        actions += [
            AddAction(
                file.path,
                file.size,
                dict(file.partition_values),
                loaded_ms,
                changes_rows,
                self._stats(file),
            )
            for file in added
        ]
        self._handle.create_write_transaction(
            actions,
            "append",
            self._handle.schema(),
            partition_by=list(self.partition_columns),
            commit_properties=CommitProperties(app_transactions=txns),
        )

    def _stats(self, file: NewFile) -> str:
        """Of a table that another program created only the row count: see _STATS_SETTING."""
        configuration = self._handle.metadata().configuration
        if configuration.get(_STATS_SETTING) == _CONFIGURATION[_STATS_SETTING]:
            return file.stats
        return json.dumps({"numRecords": file.row_count})

    def _check_files(self, files: Sequence[NewFile], written_at_ms: int) -> None:
        """deltalake commits files that do not exist, and no reader opens the table after that."""
        age_ms = self._clock_ms() - written_at_ms
        if files and age_ms > _COMMIT_AGE_MS_MAX:
            raise CommitRefused(
                f"the files of this batch are {age_ms // 3_600_000} hours old, and vacuum may "
                f"delete files without a commit after {ORPHAN_AGE_H_MIN} hours. Nothing was "
                "committed"
            )
        for _, wrong in self._wrong_sizes(files):
            raise CommitRefused(
                f"{wrong}. Executors must write to the same place as the driver. Nothing was "
                "committed"
            )

    def _wrong_sizes(self, files: Sequence[NewFile | TableFile]) -> Iterator[tuple[str, str]]:
        sizes = self.location.sizes([file.path for file in files])
        for file, size in zip(files, sizes, strict=True):
            if size != file.size:
                found = "is missing" if size is None else f"has {size} bytes"
                place = self.location / file.path
                yield file.path, f"{place} {found}, and should have {file.size} bytes"

    def start_over(self, schema: pa.Schema, claim: Numbered) -> None:
        """Remove all rows and replace the columns, in one commit."""
        failure: Exception | None = None
        for _ in range(_TRIES):
            self.update()
            self._check_claim(claim)
            try:
                DeltaTable.create(
                    self.location.url,
                    Schema.from_arrow(schema),
                    mode="overwrite",
                    configuration=_CONFIGURATION,
                    storage_options=self.location.storage_options,
                    commit_properties=CommitProperties(
                        max_commit_retries=0, app_transactions=[Transaction(*claim)]
                    ),
                )
            except (DeltaError, OSError) as failed:
                log.info("Emptying %s failed: %s", self.location, failed)
                failure = failed
                continue
            self._handle = _open(self.location)
            return
        raise CommitRefused(
            f"could not remove the rows of {self.location} in {_TRIES} attempts. The last failure "
            f"was: {failure and reason(failure)}"
        ) from failure

    def _new_columns(self, batch: Batch) -> tuple[Field, ...]:
        return self._checked(batch.schema) if batch.files else ()

    def ensure_columns(self, schema: pa.Schema) -> None:
        """Add the columns that the table lacks. Raises SchemaRefused."""
        for _ in range(_TRIES):
            added = self._checked(schema)
            if not added:
                return
            try:
                self._add_columns(added)
            except (DeltaError, OSError) as failed:
                log.info("Adding columns to %s failed: %s", self.location, failed)
            self.update()
        raise CommitRefused(f"could not add columns to {self.location} in {_TRIES} attempts")

    def _checked(self, schema: pa.Schema) -> tuple[Field, ...]:
        """The columns that the table lacks. Raises SchemaRefused."""
        found = compare(self.fields(), fields_of(delta_json(schema)))
        if found.conflicts:
            raise SchemaRefused(
                f"the rows do not fit {self.location}: {'; '.join(found.conflicts)}. Nothing was "
                "committed"
            )
        return found.added

    def _add_columns(self, fields: Sequence[Field]) -> None:
        self._handle.alter.add_columns(
            [DeltaField.from_json(json.dumps(field)) for field in fields]
        )

    def _append(self, batch: Batch) -> None:
        written_at = self._clock_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path,
                file.size,
                dict(file.partition_values),
                written_at,
                True,
                self._stats(file),
            )
            for file in batch.files
        ]
        self._handle.create_write_transaction(
            actions,
            "append",
            self._handle.schema(),
            partition_by=list(self.partition_columns),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*txn) for txn in batch.txns.items()],
                custom_metadata={"headrace": batch.note} if batch.note else None,
            ),
        )


def _text(value: Any) -> str | None:
    """A partition value in Delta's notation."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def delta_json(schema: pa.Schema) -> str:
    text: str = Schema.from_arrow(schema).to_json()
    return text


def _open(location: Location, version: int | None = None) -> DeltaTable:
    return DeltaTable(location.url, version, storage_options=location.storage_options)


def open_version(location: Location, version: int) -> Table:
    """An older version of a table, for reading."""
    return Table(location, _open(location, version))


def open_table(place: Path | Location) -> Table | None:
    """The table in this place; None if there is none. Raises LoadStopped if it cannot be read."""
    location = location_of(place)
    try:
        if not DeltaTable.is_deltatable(location.url, location.storage_options):
            return None
        return Table(location, _open(location))
    except (DeltaError, OSError) as failed:
        raise LoadStopped(f"cannot open the table {location}: {reason(failed)}") from failed


def open_or_create(place: Path | Location, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
    """The table in this place. Another process may create it at the same time."""
    location = location_of(place)
    table = open_table(location)
    if table is None:
        try:
            DeltaTable.create(
                location.url,
                Schema.from_arrow(schema),
                mode="error",
                partition_by=list(partition_by),
                configuration=_CONFIGURATION,
                storage_options=location.storage_options,
                # deltalake would retry as version 1, and replace the metadata of the winner.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as failed:
            table = open_table(location)
            if table is None:
                raise LoadStopped(
                    f"cannot create the table {location}: {reason(failed)}"
                ) from failed
        else:
            table = open_table(location)
    assert table is not None
    if table.partition_columns != tuple(partition_by):
        raise LoadStopped(
            f"{location} is partitioned by {_names(table.partition_columns)}, and the load by "
            f"{_names(partition_by)}. A table keeps its partition columns: change --partition-by, "
            "or load into another directory"
        )
    return table


def _names(columns: Sequence[Any]) -> str:
    return ", ".join(columns) or "no column"
