"""``headrace ship``: send the lines of log files to topics, and show how far it is."""

import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from headrace.cli import output, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Compression,
    CompressionOption,
    Format,
    OutputFormat,
    examples,
)
from headrace.cli.partitions import check_topic_name
from headrace.cli.produce import check_topic
from headrace.cli.ship_status import show_status
from headrace.model.audit import AUDIT_TOPIC, AUDIT_TOPIC_CONFIGS, MinuteCounts
from headrace.ship.events import PatternInvalid, Splitter
from headrace.ship.formats import Format as LogFormat
from headrace.ship.generations import Finding
from headrace.ship.routes import Routes, RuleInvalid
from headrace.ship.sender import PRODUCER_SETTINGS, Sender
from headrace.ship.shipper import Shipper, ShippingFailed, Timing
from headrace.ship.state import StateUnusable, Totals
from headrace.ship.stream import StreamShipper

_STATUS = "status"
_RETRY_S = 1.0
_PROGRESS_INTERVAL_S = 0.5


class Key(StrEnum):
    FILE = "file"
    NONE = "none"


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|GLOB|-|status",
        help="Files, patterns in quotes, - for stdin; or status, to show the positions.",
    ),
]
TopicOption = Annotated[
    str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="Topic to send events to.")
]
TextRules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="TOPIC=REGEX",
        help="Send matching events to this topic; may be repeated. The first match wins.",
    ),
]
FileRules = Annotated[
    list[str] | None,
    typer.Option(
        "--file-rule",
        metavar="TOPIC=GLOB",
        help="Send the events of matching files to this topic; may be repeated.",
    ),
]
LineFormat = Annotated[
    LogFormat,
    typer.Option(
        "--parse",
        metavar="raw|json|common|combined|nginx",
        help="Format of the lines. Lines of web servers become JSON objects. A line without this "
        "format is sent unchanged, with the header unparsed.",
    ),
]
EventStart = Annotated[
    str | None,
    typer.Option(
        "--event-start",
        metavar="REGEX",
        help="A line that matches starts an event. The lines after it belong to the event.",
    ),
]
SizeLimit = Annotated[
    str,
    typer.Option(
        "--max-event",
        metavar="BYTES",
        help="Cut longer events into pieces, marked by the header part.",
    ),
]
KeyOption = Annotated[
    Key,
    typer.Option(
        "--key",
        metavar="file|none",
        help="Key of the records: host and file keep the lines of a file in order in one "
        "partition; none spreads them.",
    ),
]
HostName = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="NAME", help="Value of the header host. Default: the host name."
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Directory for positions, one per running shipper. Default: "
        "~/.local/state/headrace/ship.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Ship what is there, and exit.")]
FromEnd = Annotated[
    bool,
    typer.Option(
        "--from-end/--from-beginning",
        help="Where to start in files at the first run. Later files are shipped from their "
        "beginning.",
    ),
]
Audit = Annotated[
    bool,
    typer.Option(
        "--audit/--no-audit",
        help="Publish how many records were acknowledged per topic and minute, to the topic "
        "headrace-audit.",
    ),
]
CloseAfter = Annotated[
    str,
    typer.Option(
        "--close-after",
        metavar="DURATION",
        help="Close a file that has not grown for this time. The last line of a rotated "
        "file is then sent, even without a line end.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command(
        "ship",
        no_args_is_help=True,
        epilog=examples(
            "headrace ship '/var/log/app/*.log*' --topic logs",
            "headrace ship '/var/log/nginx/access.log*' --topic visits --parse nginx",
            r"headrace ship app.log -t logs --event-start '\d{4}-\d\d-\d\d' --rule errors=ERROR",
            "myprogram | headrace ship - --topic logs",
            "headrace ship status",
        ),
    )(ship)


def ship(
    files: Files,
    topic: TopicOption = None,
    rules: TextRules = None,
    file_rules: FileRules = None,
    parse: LineFormat = LogFormat.RAW,
    event_start: EventStart = None,
    max_event: SizeLimit = "512k",
    key: KeyOption = Key.FILE,
    host: HostName = None,
    state: StateOption = None,
    once: Once = False,
    from_end: FromEnd = False,
    close_after: CloseAfter = "60s",
    audit: Audit = True,
    compression: CompressionOption = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Send log files to topics, and follow them.

    Rotated files are read to their end: renamed, copied and truncated, or deleted while open.
    Positions are saved after the broker has acknowledged the lines, so every line arrives at least
    once. The headers host, file, generation and offset identify an event.
    """
    directory = state or _default_state()
    if files == [_STATUS]:
        show_status(directory, format)
        return
    if topic is None:
        raise values.wrong("Missing option --topic")
    routes, splitter = _parsed(topic, file_rules, rules, max_event, event_start)
    timing = Timing(event_s=0 if once else Timing.event_s, close_s=_seconds(close_after))
    connection = Connection(bootstrap, settings, client_file)
    senders: list[Sender] = []

    def make_sender(totals: Totals) -> Sender:
        producer = _producer(connection, compression, routes, wait=not once)
        name = host or socket.gethostname()
        counts = _counts(connection, name) if audit else None
        senders.append(Sender(producer, name, routes, totals, parse, key is Key.FILE, counts))
        return senders[-1]

    try:
        if files == ["-"]:
            _ship_stdin(make_sender(Totals()), splitter, format)
            return
        _ship_files(
            Shipper(
                _patterns(files, once),
                directory,
                make_sender,
                splitter,
                _new_id,
                once=once,
                from_end=from_end,
                timing=timing,
                report=_report,
                progress=_Progress(),
            ),
            format,
        )
    except (OSError, StateUnusable) as failure:
        raise output.CommandFailed(output.reason(failure)) from None
    except ShippingFailed as failure:
        raise _refused(failure.args[0]) from None
    finally:
        _report_uncounted(senders)


def _parsed(
    topic: str,
    file_rules: list[str] | None,
    rules: list[str] | None,
    max_event: str,
    event_start: str | None,
) -> tuple[Routes, Splitter]:
    try:
        return (
            Routes(topic, file_rules or (), rules or ()),
            Splitter(values.size(max_event), event_start),
        )
    except (RuleInvalid, PatternInvalid) as failure:
        raise values.wrong(str(failure)) from None


def _ship_files(shipper: Shipper, format: Format) -> None:
    started = shipper.totals.events, shipper.totals.bytes
    with _Stopping(shipper):
        shipper.run()
    output.progress_over()
    _summary(shipper.totals.events - started[0], shipper.totals.bytes - started[1], format)


def _ship_stdin(sender: Sender, splitter: Splitter, format: Format) -> None:
    shipper = StreamShipper(sys.stdin.fileno(), sender, splitter, _new_id())
    with _Stopping(shipper):
        shipper.run(lambda: None, flush_s=30)
    if sender.failure is not None:
        raise ShippingFailed(sender.failure)
    if shipper.unacknowledged:
        raise output.CommandFailed(
            f"{shipper.unacknowledged:,} bytes of stdin were not acknowledged by the broker; they "
            "may be lost"
        )
    _summary(sender.totals.events, sender.totals.bytes, format)


def _summary(events: int, size: int, format: Format) -> None:
    if format is Format.JSON:
        output.document({"events": events, "bytes": size})
    elif output.is_watched():
        output.note(f"Shipped {values.counted(events, 'event')}, {size:,} bytes.")


def _seconds(close_after: str) -> float:
    milliseconds = values.duration_ms(close_after)
    if milliseconds is None:
        raise values.wrong(f"--close-after {close_after!r}: expected a duration such as 60s")
    return milliseconds / 1000


def _patterns(files: list[str], once: bool) -> list[str]:
    for file in files:
        if file == "-":
            raise values.wrong("- (stdin) cannot be combined with files")
        if once and "*" not in file and not Path(file).exists():
            raise output.CommandFailed(f"{file}: no such file")
    return files


def _producer(
    connection: Connection, compression: Compression, routes: Routes, wait: bool
) -> Producer:
    """A producer; a shipper that runs as a service waits for the broker."""
    for name in routes.topics:
        check_topic_name(name, "ship")
    waiting = False
    while True:
        try:
            producer = connection.producer(
                {**PRODUCER_SETTINGS, "compression.type": compression.value}
            )
            for topic in routes.topics:
                check_topic(connection, producer, topic)
            return producer
        except output.CommandFailed as failure:
            if not wait or failure.status == output.WRONG_USAGE:
                raise
            if not waiting:
                output.note(f"waiting for a broker: {failure}")
            waiting = True
            time.sleep(_RETRY_S)


def _report_uncounted(senders: list[Sender]) -> None:
    for sender in senders:
        if sender.uncounted is not None:
            output.note(
                f"the counts for the audit could not be published to {AUDIT_TOPIC}: "
                f"{explained(sender.uncounted)}; --no-audit publishes none"
            )


def _counts(connection: Connection, host: str) -> MinuteCounts:
    """Counts for the audit, whose topic is created if it is missing.

    If that fails, the shipper says at its end why it published none.
    """
    admin = connection.admin()
    with contextlib.suppress(KafkaException):
        if AUDIT_TOPIC not in admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics:
            topic = NewTopic(AUDIT_TOPIC, 1, config=dict(AUDIT_TOPIC_CONFIGS))
            admin.create_topics([topic])[AUDIT_TOPIC].result(ANSWER_TIMEOUT_S)
    return MinuteCounts(f"ship/{host}", _new_id())


class _Stopping:
    """SIGTERM and Ctrl-C stop a shipper cleanly; the second one stops it immediately."""

    def __init__(self, shipper: Shipper | StreamShipper) -> None:
        self._shipper = shipper
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._stop)

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, *_: object) -> None:
        self._shipper.stop()
        self._restore()


class _Progress:
    """The progress line of a shipper."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._events: int | None = None

    def __call__(self, shipper: Shipper) -> None:
        now = time.monotonic()
        passed = now - self._shown_at
        if passed < _PROGRESS_INTERVAL_S or not output.is_watched():
            return
        events = shipper.totals.events
        rate = 0 if self._events is None else (events - self._events) / passed
        self._shown_at, self._events = now, events
        output.progress(
            f"{events:,} events shipped, {rate:,.0f}/s, {shipper.lag:,} bytes not acknowledged"
        )


def _refused(error: KafkaError) -> output.CommandFailed:
    hint = ""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        hint = "; choose a smaller --max-event, or raise max.message.bytes of the topic"
    return output.CommandFailed(
        f"a record was refused: {explained(error)}{hint}. Its position is not saved: the next run "
        "sends it again"
    )


def _report(finding: Finding) -> None:
    output.progress_over()
    output.note(str(finding))


def _new_id() -> str:
    """An ID that is never used again, also if the state directory is lost."""
    return f"{time.time_ns() // 1_000_000:x}-{secrets.token_hex(3)}"


def _default_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace" / "ship"
