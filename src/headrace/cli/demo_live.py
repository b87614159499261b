"""What moves while ``headrace demo pipeline`` goes on live: events, tables, alerts and lag."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import output

if TYPE_CHECKING:
    from headrace.model.ids import TopicPartition
    from headrace.pipeline.runner.streams import Progress
    from headrace.pipeline.warehouse.load import Progress as Loaded
    from headrace.spark.cluster import Cluster

_ALERT_TOPICS = ("alerts", "operations-alerts")
_ALERTS_SHOWN = 5  # in an interval
_PAGES_SHOWN = 3
_RECENT = timedelta(minutes=5)


class LiveView:
    """Prints alerts as they come, and at an interval how far everything is.

    ``sent`` and ``loaded`` may be called by other threads.
    """

    def __init__(self, cluster: "Cluster", warehouse: Path, interval_s: float = 10.0) -> None:
        self._cluster = cluster
        self._warehouse = warehouse
        self._sent = 0
        self._loaded: Counter[str] = Counter()
        self._queries: set[tuple[str, str]] = set()
        self._ends = self._alert_ends()  # alerts of the day were shown before
        self._alerts = self._alerts_hidden = self._alerts_shown = 0
        self._interval_s = interval_s
        self._shown_at = time.monotonic()

    def sent(self, count: int) -> None:
        """The number of events sent so far."""
        self._sent = count

    def loaded(self, topic: str, batch: "Loaded") -> None:
        self._loaded[topic] += batch.row_count

    def ran(self, batch: "Progress") -> None:
        """A query has finished a batch."""
        self._queries.add((batch.pipeline, batch.query))
        for alert in self._new_alerts():
            self._alerts += 1
            if self._alerts_shown < _ALERTS_SHOWN:
                self._alerts_shown += 1
                output.line(f"   ! {alert}")
            else:
                self._alerts_hidden += 1
        if time.monotonic() - self._shown_at >= self._interval_s:
            self._shown_at = time.monotonic()
            self._show()

    def _show(self) -> None:
        now = datetime.now(UTC)
        hidden = f" ({self._alerts_hidden:,} not shown)" if self._alerts_hidden else ""
        self._alerts_hidden = self._alerts_shown = 0
        output.line(
            f"   {now:%H:%M:%S}  {self._sent:,} events, {self._loaded.total():,} rows loaded, "
            f"{self._alerts:,} alerts{hidden}"
        )
        pages = ", ".join(f"{page} {views:,}" for page, views in self._top_pages(now - _RECENT))
        minutes = int(_RECENT.total_seconds()) // 60
        output.line(f"             top pages of {minutes} minutes: {pages or 'none yet'}")
        output.line(f"             lag: {', '.join(self._lags())}")

    def _lags(self) -> Iterator[str]:
        """By the consumer group of each query. What a batch reports is older than the batch."""
        from headrace.pipeline.runner.inspection import group_lag
        from headrace.pipeline.runner.streams import group_of

        for query in sorted(self._queries):
            yield f"{'/'.join(query)} {number(group_lag(self._cluster, group_of(*query)))}"

    def _top_pages(self, since: datetime) -> list[tuple[str, int]]:
        """From the table of the activity job."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from headrace.pipeline.warehouse.table import open_table

        table = open_table(self._warehouse / "page_minutes")
        if table is None:
            return []
        rows = table.handle.to_pyarrow_dataset().to_table(columns=["page", "minute", "views"])
        minute = rows.column("minute")
        rows = rows.filter(pc.greater_equal(minute, pa.scalar(since, minute.type)))
        pages = rows.group_by("page").aggregate([("views", "sum")]).to_pylist()
        pages.sort(key=lambda row: (-row["views_sum"], row["page"]))
        return [(row["page"], row["views_sum"]) for row in pages[:_PAGES_SHOWN]]

    def _new_alerts(self) -> Iterator[str]:
        from headrace.spark.fetching import RangeReader
        from headrace.spark.offsets import Range
        from headrace.spark.options import FetchSettings

        ends = self._alert_ends()
        ids = {name: one.topic_id for name, one in self._cluster.topics(_ALERT_TOPICS).items()}
        for place, end in ends.items():
            range_ = Range(place, self._ends.get(place, 0), end)
            if range_.size > 0:
                for records in RangeReader(
                    self._cluster, range_, ids[place.topic], FetchSettings(read_committed=True)
                ):
                    for value in records.values().to_pylist():
                        yield in_words(json.loads(value))
        self._ends = ends

    def _alert_ends(self) -> "dict[TopicPartition, int]":
        from headrace.model.ids import TopicPartition
        from headrace.spark.cluster import LATEST

        found = self._cluster.topics(_ALERT_TOPICS)
        places = [TopicPartition(name, n) for name, one in found.items() for n in one.leaders]
        return self._cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)


def in_words(alert: Mapping[str, Any]) -> str:
    """An alert of the security job, or of the operations job."""
    if "client" in alert:
        seen = alert["evidence"]
        return (
            f"{alert['kind']} {alert['client']}: {seen['events']:,} events in {seen['seconds']} s, "
            f"allowed are {seen['allowed']:,}"
        )
    return f"{alert['service']} {alert['kind']}: {alert['state']} at {alert['value']:.1%}"


def number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
