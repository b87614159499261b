"""Figures as rows: our value, the peer's, and the target; printed and stored."""

import csv
import datetime
import json
import math
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results.csv"

_COLUMNS = (
    "date",
    "commit",
    "figure",
    "metric",
    "unit",
    "headrace",
    "peer",
    "ratio",
    "beside",
    "target",
    "met",
    "rounds",
    "quick",
    "load",
)


@dataclass(frozen=True)
class Target:
    """A bound on our own value, or on its ratio to the peer's in the same run."""

    of: str  # "value" or "ratio"
    at_least: float = -math.inf
    at_most: float = math.inf

    def __str__(self) -> str:
        times = "×" if self.of == "ratio" else ""
        if self.at_least > -math.inf:
            return f"≥ {self.at_least:.3g} {times}".strip()
        return f"≤ {self.at_most:.3g} {times}".strip()


def value_at_most(bound: float) -> Target:
    return Target("value", at_most=bound)


def value_at_least(bound: float) -> Target:
    return Target("value", at_least=bound)


def ratio_at_least(bound: float) -> Target:
    return Target("ratio", at_least=bound)


def ratio_at_most(bound: float) -> Target:
    return Target("ratio", at_most=bound)


@dataclass(frozen=True)
class Row:
    """One metric of one figure: the medians over its rounds, ours and the peer's."""

    figure: str
    metric: str
    unit: str
    headrace: float | None
    peer: float | None
    targets: tuple[Target, ...] = ()
    rounds: int = 1
    beside: str = "Apache Kafka"

    @property
    def ratio(self) -> float | None:
        if self.headrace is None or not self.peer:
            return None
        return self.headrace / self.peer

    @property
    def met(self) -> bool | None:
        """Whether every target is reached; None without a target or a value to compare."""
        judged = [
            target.at_least <= value <= target.at_most
            for target in self.targets
            if (value := self.ratio if target.of == "ratio" else self.headrace) is not None
        ]
        return all(judged) if judged else None


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _verdict(row: Row) -> str:
    return {True: "met", False: "MISSED", None: ""}[row.met]


def cells(row: Row) -> tuple[str, ...]:
    """A row as the table shows it."""
    return (
        row.figure,
        row.metric,
        row.unit,
        _number(row.headrace),
        _number(row.peer),
        _number(row.ratio),
        row.beside if row.peer is not None else "",
        ", ".join(map(str, row.targets)),
        _verdict(row),
    )


def table(rows: Sequence[Row]) -> str:
    """All rows in aligned columns; a figure's name is shown in its first row only."""
    heads = ("FIGURE", "METRIC", "UNIT", "HEADRACE", "PEER", "RATIO", "BESIDE", "TARGET", "")
    lines = [heads, *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    printed, before = [], ""
    for line in lines:
        shown = ("" if line[0] == before else line[0], *line[1:])
        before = line[0]
        columns = [
            cell.rjust(width) if 3 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(shown, widths, strict=True))
        ]
        printed.append("  ".join(columns).rstrip())
    return "\n".join(printed)


def as_json(rows: Sequence[Row]) -> str:
    """One JSON object per line, one line per row."""
    return "\n".join(
        json.dumps(
            {
                "figure": row.figure,
                "metric": row.metric,
                "unit": row.unit,
                "headrace": row.headrace,
                "peer": row.peer,
                "ratio": row.ratio,
                "beside": row.beside,
                "target": ", ".join(map(str, row.targets)) or None,
                "met": row.met,
                "rounds": row.rounds,
            },
            ensure_ascii=False,
        )
        for row in rows
    )


def _commit() -> str:
    """The measured commit; ``+`` marks uncommitted changes of the sources."""
    git = ["git", "-C", str(RESULTS.parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "--", "../src"], capture_output=True)
    return head.stdout.strip() + ("+" if changed.stdout else "") if head.stdout else "unknown"


def keep(rows: Sequence[Row], *, quick: bool) -> None:
    """Append the rows to ``results.csv`` with date, commit and the load of the machine."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    commit = _commit()
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(_COLUMNS)
        for row in rows:
            writer.writerow(
                (
                    date,
                    commit,
                    row.figure,
                    row.metric,
                    row.unit,
                    *(_exact(value) for value in (row.headrace, row.peer, row.ratio)),
                    row.beside if row.peer is not None else "",
                    ", ".join(map(str, row.targets)),
                    _verdict(row),
                    row.rounds,
                    "quick" if quick else "",
                    f"{os.getloadavg()[0]:.2f}",
                )
            )


def newest() -> str:
    """The latest results of each metric in results.csv, without quick runs, as a Markdown table."""
    latest: dict[tuple[str, str], dict[str, str]] = {}
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            for kept in csv.DictReader(file):
                if not kept["quick"]:
                    # In the order of measurement, so that a figure's rows stay together.
                    latest.pop((kept["figure"], kept["metric"]), None)
                    latest[kept["figure"], kept["metric"]] = kept
    lines = [
        "| figure | metric | unit | Headrace | beside | ratio | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kept in latest.values():
        ours, theirs, ratio = (
            _number(float(kept[column]) if kept[column] else None)
            for column in ("headrace", "peer", "ratio")
        )
        beside = f"{kept['beside']} {theirs}" if kept["beside"] else "–"
        shown = (kept["figure"], kept["metric"], kept["unit"], ours, beside, ratio)
        lines.append("| " + " | ".join((*shown, kept["target"], kept["met"])) + " |")
    return "\n".join(lines)


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
