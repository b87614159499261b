"""``headrace report``: pages from the tables of a warehouse."""

import webbrowser
from datetime import date as Date
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, values
from headrace.cli.options import Format, OutputFormat, examples, noun

DEFAULT_WAREHOUSE = Path("warehouse")
_DAILY = "daily"

Warehouse = Annotated[
    Path, typer.Option("--warehouse", metavar="DIR", help="Directory of the warehouse.")
]
DateOption = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="YYYY-MM-DD",
        help="Day of the report, in UTC. Default: the day before the newest event, or the day of "
        "that event if there is no earlier one.",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="File to write. Default: REPORT-DATE.html."
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
Static = Annotated[
    bool, typer.Option("--static", help="Write a small page without tooltips, for mail.")
]

app = noun(
    "Write reports from the warehouse as HTML pages.",
    "headrace report daily --open",
    "headrace report run shop.py --date 2026-11-16",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="report")


@app.command(
    epilog=examples(
        "headrace report daily --open",
        "headrace report daily --date 2026-11-16 --static --output daily.html",
    )
)
def daily(
    date: DateOption = None,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    output_file: OutputFile = None,
    static: Static = False,
    open_page: Open = False,
) -> None:
    """Write the daily report of a website.

    The report covers traffic, sessions, rankings, security, services and audit. The page is one
    file that needs no network. The same tables give the same page.
    """
    _require_packages()
    _write(_daily_file(), date, warehouse, output_file, static, open_page)


@app.command(
    no_args_is_help=True, epilog=examples("headrace report run shop.py --date 2026-11-16 --open")
)
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python file with panels.")],
    date: DateOption = None,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    output_file: OutputFile = None,
    static: Static = False,
    open_page: Open = False,
) -> None:
    """Write the report that a Python file declares."""
    _require_packages()
    _write(file, date, warehouse, output_file, static, open_page)


@app.command("list", epilog=examples("headrace report list", "headrace report list shop.py"))
def list_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Report files to list beside the daily report."),
    ] = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List reports with their panels and the views that each needs."""
    _require_packages()

    from headrace.report.definition import load_report
    from headrace.report.errors import ReportFailed

    try:
        reports = [load_report(file) for file in [_daily_file(), *(files or [])]]
    except ReportFailed as failure:
        raise output.CommandFailed(str(failure)) from None
    listed = [
        (report.name, panel.title, panel.needs) for report in reports for panel in report.panels
    ]
    if format is Format.JSON:
        names = ("report", "panel", "needs")
        output.document([dict(zip(names, row, strict=True)) for row in listed])
    else:
        rows = [(report, title, ", ".join(needs)) for report, title, needs in listed]
        output.table(["REPORT", "PANEL", "NEEDS"], rows)


def _write(
    file: Path,
    date: str | None,
    warehouse: Path,
    output_file: Path | None,
    static: bool,
    open_page: bool,
) -> None:
    from headrace.report.day import Day
    from headrace.report.definition import load_report
    from headrace.report.errors import ReportFailed
    from headrace.report.page import build_page

    try:
        report = load_report(file)
        with Day(warehouse, _day(date), report.clock_topics, report.job_tables) as day:
            page = build_page(report, file, day, static=static)
            place = output_file or Path(f"{report.name}-{day.date}.html")
    except ReportFailed as failure:
        raise output.CommandFailed(str(failure)) from None
    try:
        place.write_text(page, encoding="utf-8")
    except OSError as failure:
        raise output.CommandFailed(output.reason(failure)) from None
    output.line(str(place))
    if open_page and not webbrowser.open(place.absolute().as_uri()):
        output.note("found no browser to open the page with")


def _day(text: str | None) -> Date | None:
    try:
        return None if text is None else Date.fromisoformat(text)
    except ValueError:
        raise values.wrong(f"--date {text!r}: expected a date such as 2026-11-16") from None


def _daily_file() -> Path:
    import headrace.report

    return Path(headrace.report.__file__).parent / f"{_DAILY}.py"


def _require_packages() -> None:
    """Raises CommandFailed if the packages of the extra ``report`` are missing."""
    try:
        import altair  # noqa: F401
        import deltalake  # noqa: F401
        import duckdb  # noqa: F401
        import pyarrow  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as missing:
        raise output.CommandFailed(
            f"{missing.name} is not installed. Install the extra `report`: "
            "pip install 'headrace[report]'"
        ) from None
