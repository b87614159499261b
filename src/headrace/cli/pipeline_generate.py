"""``headrace pipeline generate``: send realistic events, a whole day or live."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output, values
from headrace.cli.client import Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
)
from headrace.cli.pipeline_options import require_tables, source_options

if TYPE_CHECKING:
    from headrace.pipeline.generate.sending import Generated
    from headrace.spark.cluster import Cluster

_PROGRESS_INTERVAL_S = 0.2

Events = Annotated[
    int | None,
    typer.Option(
        "--events", metavar="N", help="Number of records. Default: 500,000; live: no limit."
    ),
]
Day = Annotated[
    str | None,
    typer.Option("--date", metavar="YYYY-MM-DD", help="Day of the events. Default: yesterday."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="The same seed gives the same day.")]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="R",
        help="Send R events per second that happen now, until Ctrl-C. Without it, a day is sent "
        "as fast as possible.",
    ),
]
Members = Annotated[
    int, typer.Option("--members", metavar="N", help="Number of members of the website.")
]
Partitions = Annotated[
    int, typer.Option("--partitions", metavar="N", help="Partitions of topics that are created.")
]
Broken = Annotated[
    bool,
    typer.Option(
        "--broken/--no-broken",
        help="Include a few records with invalid JSON, wrong types, and times of 1970 and 2100.",
    ),
]


def generate(
    events: Events = None,
    day: Day = None,
    seed: Seed = 1,
    rate: Rate = None,
    members: Members = 5_000,
    partitions: Partitions = 2,
    broken: Broken = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Send realistic events of a website, for a day or live.

    The events are visits, searches, posts, votes, logins, API calls, metrics and request logs. They
    include bots, outages, and late, duplicate and broken events. Missing topics are created.
    """
    if rate is not None and day is not None:
        raise values.wrong("give --date or --rate, not both: with --rate, events happen now")
    if rate is not None and rate <= 0:
        raise values.wrong(f"--rate {rate}: expected a number above 0")
    parsed = _date(day)
    require_tables()

    from headrace.client.errors import ClientError
    from headrace.pipeline.generate import sending
    from headrace.spark.failures import BadOption

    _at_least(events, sending.EVENTS_MIN if rate is None else 1, "--events")
    _at_least(members, sending.MEMBERS_MIN, "--members")
    _at_least(partitions, 1, "--partitions")
    _at_least(seed, 0, "--seed")
    options: dict[str, Any] = {"seed": seed, "members": members, "partitions": partitions}
    options |= {"broken": broken, "progress": _Progress(rate is None, events or sending.EVENTS)}
    began_at = time.monotonic()
    try:
        with contextlib.closing(_cluster(bootstrap, settings, client_file)) as cluster:
            if rate is None:
                count = sending.EVENTS if events is None else events
                done = sending.generate_day(cluster, parsed, events=count, **options)
            else:
                with stopped_by_signals() as stop:
                    done = sending.generate_live(cluster, rate, stop, events=events, **options)
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    finally:
        output.progress_over()
    _show(done, time.monotonic() - began_at, format)


def _date(text: str | None) -> date:
    if text is None:
        return (datetime.now(UTC) - timedelta(days=1)).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise values.wrong(f"--date {text!r}: expected a day such as 2026-07-31") from None


def _at_least(number: int | None, least: int, option: str) -> None:
    if number is not None and number < least:
        raise values.wrong(f"{option} {number}: expected at least {least:,}")


def _cluster(bootstrap: str, settings: list[str] | None, client_file: Path | None) -> "Cluster":
    from headrace.spark.cluster import Cluster
    from headrace.spark.options import parse_sink

    options = source_options(bootstrap, settings, client_file)
    client = parse_sink({**options, "topic": "unused"}).client
    Connection(bootstrap, settings, client_file).reach()
    return Cluster(client)


class _Progress:
    """Shows how much was sent, and how fast."""

    def __init__(self, has_end: bool, total: int) -> None:
        self._of = f" of {total:,}" if has_end else ""
        self._began_at = self._shown_at = time.monotonic()

    def __call__(self, sent: int) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _PROGRESS_INTERVAL_S:
            self._shown_at = now
            rate = sent / (now - self._began_at)
            output.progress(f"sent {sent:,}{self._of} events, {rate:,.0f} per second")


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C interrupts."""
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(done: "Generated", seconds: float, format: Format) -> None:
    counts = {topic: count._asdict() for topic, count in done.topics.items()}
    if format is Format.JSON:
        outages = [outage._asdict() for outage in done.outages]
        output.document(
            {
                "sent": done.sent,
                "seconds": round(seconds, 3),
                "topics": counts,
                "outages": outages,
                "bots": done.bots,
            }
        )
        return
    names = next(iter(counts.values()))
    rows = [[topic, *count.values()] for topic, count in counts.items()]
    rows.append(["all topics", *(sum(count[name] for count in counts.values()) for name in names)])
    output.table(["TOPIC", *(name.upper().replace("_", "-") for name in names)], rows)
    output.note(
        f"sent {done.sent:,} events in {seconds:.1f} s, {done.sent / seconds:,.0f} per second"
    )
