"""One day of a warehouse, ready for SQL: its views, its range, and how fresh it is."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from headrace.report.errors import ReportFailed
from headrace.report.views import (
    JOB_TABLES,
    LATENESS,
    JobTable,
    events_view,
    instant,
    job_view,
    letters_view,
    newest_event,
    quoted,
    raw_view,
    view_name,
)

_RAW = "raw"
_DEAD_LETTERS = "_dead_letters"
_ONE_DAY = timedelta(days=1)
# A query that is wrong itself fails with these, and reads nothing.
_WRONG_QUERY = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)


class Day:
    """The views of one day, for one thread; close it after use.

    In SQL there are

    - ``events_TOPIC``: the events of the day and the day before, each once, with the columns
      ``today`` (boolean), ``hour`` (0 to 23) and ``by_now``
    - ``raw_TOPIC``: all rows of the topic, as they were loaded
    - ``TABLE``: a job's table, one row per key
    - ``appended_TABLE``: the rows that its batches appended
    - ``dead_letters``: the dead letters of all topics
    - ``in_day(time)``, and ``in_day_before(time)`` for the day before, by the time of day of the
      newest event, as ``by_now``

    All times are in UTC.
    """

    def __init__(
        self,
        warehouse: Path,
        day: date | None = None,
        clock_topics: Sequence[str] = (),
        job_tables: Iterable[JobTable] = (),
    ) -> None:
        """``clock_topics`` are busy topics: the slowest decides how far the day is loaded."""
        if not warehouse.is_dir():
            raise ReportFailed(f"{warehouse}: no such directory; name it with --warehouse")
        self._warehouse = warehouse
        self._database = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "threads": "2"}
        )
        self._database.execute("set timezone = 'UTC'; set enable_progress_bar = false")
        self._database.execute("set python_enable_replacements = false")
        self._views: dict[str, str] = {}  # with the directory of the table
        self._tables: dict[Path, pyarrow.dataset.Dataset] = {}
        try:
            self._open_raw_tables()
            self._open_job_tables({table.name: table for table in (*JOB_TABLES, *job_tables)})
            newest = self._newest_events()
            clocks = [newest[name] for name in clock_topics if name in newest]
            self.newest_event = min(clocks) if clocks else max(newest.values(), default=None)
            self.date = day or self._latest_day()
            self.start = datetime.combine(self.date, datetime.min.time(), UTC)
            self.end = self.start + _ONE_DAY
            self._open_events()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> "Day":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sql(self, query: str) -> pa.Table:
        """The rows of a query. Order them: a report must be the same each time.

        Raises ReportFailed if a file of a table is damaged.
        """
        try:
            found: pa.Table = self._database.sql(query).to_arrow_table()
        except _WRONG_QUERY:
            raise
        except (duckdb.Error, OSError) as failure:
            self._find_damage(failure)
            raise
        for slot, field in enumerate(found.schema):
            if pa.types.is_decimal(field.type):  # DuckDB's sums of integers
                kind = pa.float64() if field.type.scale else pa.int64()
                found = found.set_column(slot, field.name, found.column(slot).cast(kind))
        return found

    def row(self, query: str) -> dict[str, Any]:
        """The only row of a query."""
        (found,) = self.sql(query).to_pylist()
        return dict(found)

    @property
    def settled_until(self) -> datetime:
        """Events before this time are complete; later ones may still arrive."""
        if self.newest_event is None:
            return self.start
        return min(max(self.newest_event - LATENESS, self.start), self.end)

    @property
    def is_settled(self) -> bool:
        return self.settled_until == self.end

    @property
    def hours(self) -> range:
        """The hours of the day that have begun."""
        if self.newest_event is None or self.newest_event >= self.end:
            return range(24)
        return range(int((self.newest_event - self.start).total_seconds()) // 3600 + 1)

    @property
    def provisional_hours(self) -> range:
        """The hours whose numbers may still change."""
        settled = int((self.settled_until - self.start).total_seconds()) // 3600
        return range(settled, self.hours.stop)

    @property
    def topics(self) -> list[str]:
        """The topics with events, by name."""
        return sorted(
            Path(place).name for name, place in self._views.items() if name.startswith("events_")
        )

    def has(self, view: str) -> bool:
        """Whether a view has rows; for events, rows of this day."""
        if view not in self._views:
            return False
        rows = quoted(view)
        if view.startswith("events_"):  # raw rows: finding repeated events takes longer
            rows = f"""{quoted("raw_" + view.removeprefix("events_"))} where in_day("at")"""
        return bool(self.row(f"select exists (select 1 from {rows}) as found")["found"])

    def missing(self, view: str) -> str:
        """One sentence for a view without rows."""
        if view not in self._views:
            prefix, _, rest = view.partition("_")
            is_raw = prefix in ("events", _RAW)
            place = f"{_RAW}/{rest.replace('_', '-')}" if is_raw else view
            return f"The warehouse has no table {place}."
        of_day = " for this day" if view.startswith("events_") else ""
        return f"The table {self._views[view]} has no rows{of_day}."

    def loaded_at(self) -> datetime | None:
        """When the newest row of this day was loaded."""
        found = [
            self.row(f"""
                select max(_loaded_at) as newest from {view_name("raw_", topic)}
                where in_day("at")""")["newest"]
            for topic in self.topics
        ]
        return max((time for time in found if time is not None), default=None)

    def _open_raw_tables(self) -> None:
        letters = [self._warehouse / _DEAD_LETTERS]
        for place in _tables_in(self._warehouse / _RAW):
            name = view_name("raw_", place.name)
            columns = self._register(f"_dataset_{name}", place)
            self._create(name, raw_view(f"_dataset_{name}", columns), place)
            letters.append(place / _DEAD_LETTERS)
        letters = [place for place in letters if DeltaTable.is_deltatable(str(place))]
        found = [
            letters_view(source, self._register(source, place))
            for number, place in enumerate(letters)
            for source in [f"_dataset_dead_letters_{number}"]
        ]
        if found:
            self._create("dead_letters", " union all ".join(found), letters[0])

    def _open_job_tables(self, known: dict[str, JobTable]) -> None:
        for place in _tables_in(self._warehouse):
            name = view_name("appended_", place.name)
            columns = self._register(f"_dataset_{name}", place)
            self._create(name, f"select * from {quoted(f'_dataset_{name}')}", place)
            table = known.get(place.name)
            if table is None:
                continue
            lacking = [column for column in table.key if column not in columns]
            if lacking:
                raise ReportFailed(
                    f"the table {place} has no column {lacking[0]}, which is part of its key"
                )
            self._create(table.name, job_view(name, columns, table), place)

    def _open_events(self) -> None:
        for name in [view for view in self._views if view.startswith("raw_")]:
            if {"event_id", "at"} <= self._columns(name):
                view = "events_" + name.removeprefix("raw_")
                place = self._warehouse / self._views[name]
                self._create(view, events_view(name, self.start, self._now()), place)
        now = self._now() or self.end
        for macro, start, end in (
            ("in_day", self.start, self.end),
            ("in_day_before", self.start - _ONE_DAY, now - _ONE_DAY),
        ):
            self._database.execute(
                f"create temp macro {macro}(time_) as "
                f"time_ >= {instant(start)} and time_ < {instant(end)}"
            )

    def _now(self) -> datetime | None:
        """The time of the newest event, while the day goes on."""
        if self.newest_event is None or self.newest_event >= self.end:
            return None
        return max(self.newest_event, self.start)

    def _newest_events(self) -> dict[str, datetime]:
        """The newest event of each topic that has events."""
        found = {}
        for name in [view for view in self._views if view.startswith("raw_")]:
            if "at" not in self._columns(name):
                continue
            newest = self.row(newest_event(name))["newest"]
            if newest is not None:
                found[Path(self._views[name]).name] = newest
        return found

    def _latest_day(self) -> date:
        """The day before the newest event, which has ended; its own day if that has no events."""
        if self.newest_event is None:
            raise ReportFailed(
                f"{self._warehouse / _RAW} has no table with events; load topics with headrace "
                "pipeline load, or name a day with --date"
            )
        newest = self.newest_event.date()
        start = datetime.combine(newest - _ONE_DAY, datetime.min.time(), UTC)
        between = f'"at" >= {instant(start)} and "at" < {instant(start + _ONE_DAY)}'
        for name in [view for view in self._views if view.startswith("raw_")]:
            query = f"select exists (select 1 from {quoted(name)} where {between}) as found"
            if "at" in self._columns(name) and self.row(query)["found"]:
                return start.date()
        return newest

    def _register(self, name: str, place: Path) -> set[str]:
        """Make a Delta table known to DuckDB; returns its columns."""
        try:
            table = DeltaTable(str(place))
            rows = table.to_pyarrow_dataset()
            _check_files(table, place)
        except (DeltaError, OSError, pa.ArrowException) as failure:
            raise ReportFailed(f"cannot read the table {place}: {failure}") from failure
        self._database.register(name, rows)
        self._tables[place] = rows
        return set(rows.schema.names)

    def _find_damage(self, failure: Exception) -> None:
        """Raises ReportFailed for the first file that cannot be read. DuckDB does not name it."""
        for place, rows in self._tables.items():
            for fragment in rows.get_fragments():
                try:
                    for _ in fragment.to_batches():
                        pass
                except (OSError, pa.ArrowException) as damage:
                    raise ReportFailed(
                        f"{place / fragment.path} cannot be read: {_first_line(damage)}. Restore "
                        "the file, or write its rows again: headrace pipeline load --reload-from "
                        "for a raw table, headrace pipeline run --reset for a pipeline's"
                    ) from failure

    def _create(self, name: str, query: str, place: Path) -> None:
        self._database.execute(f"create temp view {quoted(name)} as {query}")
        self._views[name] = place.relative_to(self._warehouse).as_posix()

    def _columns(self, view: str) -> set[str]:
        return set(self._database.sql(f"select * from {quoted(view)} limit 0").columns)


def _check_files(table: DeltaTable, place: Path) -> None:
    """Raises ReportFailed if a file is missing or has another size. Queries would not name it."""
    files = pa.table(table.get_add_actions(flatten=True))
    for file in files.select(["path", "size_bytes"]).to_pylist():
        path, size = place / file["path"], file["size_bytes"]
        found = path.stat().st_size if path.exists() else None
        if found != size:
            damage = "is missing" if found is None else f"has {found} bytes, and should have {size}"
            raise ReportFailed(
                f"{path} {damage}. Restore the file, or, if it is one of a loaded table, load its "
                "records again with headrace pipeline load --reload-from"
            )


def _tables_in(directory: Path) -> list[Path]:
    """The Delta tables of a directory, by name."""
    if not directory.is_dir():
        return []
    found = sorted(place for place in directory.iterdir() if not place.name.startswith("_"))
    return [place for place in found if place.is_dir() and DeltaTable.is_deltatable(str(place))]


def _first_line(failure: Exception) -> str:
    return str(failure).strip().split("\n")[0].rstrip(".")
