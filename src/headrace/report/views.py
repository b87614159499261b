"""The SQL of the views over a warehouse's tables. Pure.

A topic may hold an event more than once, and a job's table holds what each batch appended. The
views show one row per event and one row per key.
"""

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

# Events may arrive this much late; an hour is provisional until then.
LATENESS: Final = timedelta(minutes=10)
# The relative standard error of unique counts in sketches of 4,096 registers, Spark's default.
HLL_ERROR: Final = 1.04 / 4096**0.5
# What a load without these columns does not have.
_OPTIONAL = {
    "_topic": "varchar",
    "_topic_id": "varchar",
    "_partition": "int",
    "_offset": "bigint",
    "_timestamp": "timestamptz",
    "_loaded_at": "timestamptz",
}
# What identifies a dead letter: of the load, and of a pipeline.
_LETTER = {
    "topic": ("varchar", "_topic", "topic"),
    "partition": ("int", "_partition", "partition"),
    "offset": ("bigint", "_offset", "offset"),
    "offset_end": ("bigint", "_offset_end"),
    "stage": ("varchar", "stage"),
    "pipeline": ("varchar", "pipeline"),
}
_AGGREGATES = ("sum", "min", "max")


class JobTable(NamedTuple):
    """A table that a pipeline writes: its key, and how the values of batches merge."""

    name: str
    key: tuple[str, ...]
    merge: Mapping[str, str] = {}


_COUNTS = {"views": "sum", "searches": "sum", "visitors": "hll"}
JOB_TABLES: Final = (
    JobTable("page_minutes", ("page", "minute"), _COUNTS),
    JobTable("page_days", ("page", "day"), _COUNTS),
    JobTable("content_days", ("item", "author", "day"), {"views": "sum", "visitors": "hll"}),
    JobTable("sessions", ("session_id",)),
    JobTable("profile_visits", ("member", "day"), {"visits": "sum", "visitors": "hll"}),
    JobTable("following", ("member", "followed")),
    JobTable("activities", ("event_id",)),
    JobTable("feeds", ("member",)),
    JobTable("popular_authors", ("actor",)),
    JobTable("rankings", ("category", "rank")),
    JobTable("incidents", ("incident_id",)),
    JobTable("blocked", ("client",)),
    JobTable(
        "host_minutes",
        ("host", "minute"),
        dict.fromkeys(("cpu_sum", "io_read", "io_write", "samples"), "sum") | {"cpu_max": "max"},
    ),
    JobTable(
        "service_minutes",
        ("service", "host", "minute"),
        {"requests": "sum", "errors": "sum", "slow": "sum", "duration": "kll"},
    ),
    JobTable("service_alerts", ("service", "kind")),
    JobTable("expectations", ("pipeline", "function", "rule"), {"rows": "sum", "failed": "sum"}),
)


def view_name(prefix: str, table: str) -> str:
    """The name of a table in SQL: ``page-views`` of the raw tables is ``raw_page_views``."""
    return prefix + re.sub(r"\W", "_", table)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def instant(time: datetime) -> str:
    return f"timestamptz '{time.isoformat()}'"


def raw_view(source: str, columns: Collection[str]) -> str:
    """The rows of a topic as they were loaded."""
    added = [f"null::{kind} as {name}" for name, kind in _OPTIONAL.items() if name not in columns]
    return f"select {', '.join(['*', *added])} from {quoted(source)}"


def newest_event(raw: str) -> str:
    """The newest event time of a topic. It is at most ``LATENESS`` after the record's own."""
    late = f"interval {int(LATENESS.total_seconds())} second"
    return f'select max(least("at", _timestamp + {late})) as newest from {quoted(raw)}'


def events_view(raw: str, start: datetime, newest: datetime | None) -> str:
    """The events of a day and the day before, each once.

    ``by_now`` leaves out what had not happened on the day before, at the time of day of the newest
    event.
    """
    day = timedelta(days=1)
    now = start + day if newest is None else newest
    return f"""
        select *, "at" >= {instant(start)} as today, hour("at")::int as hour,
            "at" >= {instant(start)} or "at" <= {instant(now - day)} as by_now
        from {quoted(raw)}
        where "at" >= {instant(start - day)} and "at" < {instant(start + day)}
        qualify event_id is null or row_number() over (
            partition by event_id order by _topic_id, _partition, _offset) = 1"""


def job_view(source: str, columns: Collection[str], table: JobTable) -> str:
    """One row per key: merged over all batches, or of the newest batch."""
    key = ", ".join(quoted(name) for name in table.key)
    if table.merge:
        merged = [
            f"{rule}({quoted(name)}) as {quoted(name)}"
            for name, rule in table.merge.items()
            if rule in _AGGREGATES and name in columns  # sketches are for Spark
        ]
        return f"select {', '.join([key, *merged])} from {quoted(source)} group by {key}"
    kept = "where not coalesce(_deleted, false)" if "_deleted" in columns else ""
    return f"""
        select * from (
            select * from {quoted(source)} qualify row_number() over (
                partition by {key} order by _written_at desc, _batch desc, _query desc) = 1)
        {kept}"""


def letters_view(source: str, columns: Collection[str]) -> str:
    """Dead letters, each once: what was killed writes its letters again."""
    chosen = []
    for name, (kind, *candidates) in _LETTER.items():
        found = next((quoted(column) for column in candidates if column in columns), "null")
        chosen.append(f"{found}::{kind} as {quoted(name)}")
    reason = "min(reason)" if "reason" in columns else "null::varchar"
    return f"(select {', '.join(chosen)}, {reason} as reason from {quoted(source)} group by all)"
