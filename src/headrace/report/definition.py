"""What a report file declares: panels, and the blocks that they show."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from headrace.report.day import Day
from headrace.report.errors import ReportFailed
from headrace.report.shapes import Draw
from headrace.report.views import JobTable

_MARK = "__headrace_panel__"


class Figure(NamedTuple):
    """One number in large type, with its change against ``before``."""

    label: str
    value: float | None
    before: float | None = None
    unit: str = ""  # share, seconds, ms or bytes
    good: Literal["up", "down", ""] = ""  # colors the change
    note: str = ""


class Figures(NamedTuple):
    """A row of figures."""

    figures: Sequence[Figure]


class Plot(NamedTuple):
    """A plot of some rows, with a sentence that says what it shows.

    ``draw`` gets the rows and the width in pixels: 640, or 360 for a small screen. The page offers
    the rows as a table and as CSV.
    """

    title: str
    rows: pa.Table
    summary: str
    draw: Draw


class Table(NamedTuple):
    """Rows that the page shows as a table, and offers as CSV."""

    title: str
    rows: pa.Table
    note: str = ""


Block = str | Figures | Plot | Table  # a text is a paragraph
BuildPanel = Callable[[Day], Iterable[Block]]


class Panel(NamedTuple):
    """A part of the page with a heading."""

    title: str
    needs: tuple[str, ...]  # without rows in these, the panel says so and is not built
    build: BuildPanel


class Report(NamedTuple):
    """The panels of one file, in its order."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    clock_topics: tuple[str, ...]
    job_tables: tuple[JobTable, ...]


def panel(title: str, needs: Sequence[str] = ()) -> Callable[[BuildPanel], BuildPanel]:
    """Declare a panel: a function of a ``Day`` that yields blocks.

    ``needs`` names views of SQL, such as ``events_page_views`` or ``sessions``.
    """

    def declare(build: BuildPanel) -> BuildPanel:
        setattr(build, _MARK, Panel(title, tuple(needs), build))
        return build

    return declare


def job_table(name: str, key: Sequence[str], merge: Mapping[str, str] | None = None) -> JobTable:
    """Declare key and merge rules of a job's table, as its pipeline file does."""
    return JobTable(name, tuple(key), dict(merge or {}))


def load_report(path: Path) -> Report:
    """Run a report file and collect what it declares. Raises ReportFailed."""
    if not path.is_file():
        raise ReportFailed(f"{path}: no such file")
    name = path.stem
    spec = importlib.util.spec_from_file_location(f"headrace_report_{name}", path)
    if spec is None or spec.loader is None:
        raise ReportFailed(f"{path}: a report is a Python file, with a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as failure:  # any error is possible in a user's file
        place = _place_in(path, failure)
        raise ReportFailed(f"{place}: {type(failure).__name__}: {failure}") from failure
    return report_of(module, name)


def report_of(module: ModuleType, name: str) -> Report:
    """What a module declares. Raises ReportFailed if it has no panel."""
    found: list[Any] = list(vars(module).values())
    panels = tuple(getattr(value, _MARK) for value in found if hasattr(value, _MARK))
    if not panels:
        raise ReportFailed(
            f"{module.__file__} declares no panel; a panel is a function with the decorator "
            '@panel("Title") of headrace.report'
        )
    return Report(
        name,
        getattr(module, "TITLE", name.replace("_", " ").capitalize()),
        panels,
        tuple(getattr(module, "CLOCK_TOPICS", ())),
        tuple(value for value in found if isinstance(value, JobTable)),
    )


def failed_panel(path: Path, which: Panel, failure: Exception) -> ReportFailed:
    """A panel's error, with the line of its file."""
    kind = type(failure).__name__
    return ReportFailed(f"{_place_in(path, failure)}: panel {which.title!r}: {kind}: {failure}")


def _place_in(path: Path, failure: BaseException) -> str:
    """File and line where the file's own code failed."""
    if isinstance(failure, SyntaxError):
        return f"{path}:{failure.lineno}"
    line: int | None = None
    trace = failure.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return str(path) if line is None else f"{path}:{line}"
