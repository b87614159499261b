"""``headrace consume``: print records from a topic."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.cli import last_records, output, values
from headrace.cli import offsets as offsets_of
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Topic,
    examples,
)
from headrace.cli.partitions import Partition, check_numbers, check_topic_name, no_such_topic
from headrace.cli.record_format import ConsumedRecord, Printer, Shown, printer

_POLL_S = 0.1
_BATCH_COUNT = 500


FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        help="Start at the first record; with --group, only where no offset is committed.",
    ),
]
StartOffset = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--offset",
        metavar="N|earliest|latest|-N",
        help="Start at this offset in each partition; -N starts at the last N records.",
    ),
]
StartTime = Annotated[
    str | None,
    typer.Option(
        "--from-time",
        metavar="TIME",
        help="Start at the first record at or after this time: ISO 8601 (local time unless it has "
        "a time zone), milliseconds since 1970, or a duration before now (90s, 2h, 1d).",
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(
        "-p", "--partition", metavar="N", help="Read only these partitions: 0 or 0,3,5-7."
    ),
]
MaxCount = Annotated[
    int | None,
    typer.Option("-n", "--max", metavar="N", min=1, help="Exit after this many records."),
]
Group = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--group",
        metavar="NAME",
        help="Join this consumer group and commit offsets.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        help="Exit when no record arrives for this long.",
    ),
]
ExitAtEnd = Annotated[
    bool, typer.Option("-e", "--exit-at-end", help="Exit at the end of the partitions.")
]
ShowKeys = Annotated[bool, typer.Option("--keys", help="Print keys.")]
ShowHeaders = Annotated[bool, typer.Option("--headers", help="Print headers.")]
ShowTimestamps = Annotated[bool, typer.Option("--timestamps", help="Print timestamps.")]
ShowOffsets = Annotated[bool, typer.Option("--offsets", help="Print partition:offset.")]
RecordFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|json|raw|PATTERN",
        help="text: one line per record, fields separated by tabs. json: one object per line. raw: "
        "the bytes of the values only. PATTERN may contain %t topic, %p partition, %o offset, "
        "%T timestamp, %k key, %s value, %K and %S their lengths, %h headers, "
        "and \\n, \\t, \\x01.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command(
        "consume",
        no_args_is_help=True,
        epilog=examples(
            "headrace consume orders                          # new records only",
            "headrace consume orders --from-beginning --max 10 --keys",
            "headrace consume orders --offset -5 --exit-at-end --format json | jq .value",
            "headrace consume orders --from-time 2h --partition 0",
            "headrace consume orders --format '%p:%o %k=%s\\n'",
        ),
    )(consume)


def consume(
    topic: Topic,
    from_beginning: FromBeginning = False,
    offset: StartOffset = None,
    from_time: StartTime = None,
    partition: Partitions = None,
    max_count: MaxCount = None,
    group: Group = None,
    timeout_s: Timeout = None,
    exit_at_end: ExitAtEnd = False,
    keys: ShowKeys = False,
    headers: ShowHeaders = False,
    timestamps: ShowTimestamps = False,
    offsets: ShowOffsets = False,
    format_text: RecordFormat = "text",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
) -> None:
    """Print records from a topic.

    Starts at the end; use --from-beginning, --offset or --from-time to start earlier. Prints
    committed records only; use -X isolation.level=read_uncommitted to print all.

    Without --group, the command reads the partitions directly and commits nothing. (The client
    library looks for a group coordinator anyway, so the broker creates __consumer_offsets.)

    At the end, the command prints the number of records on stderr. The exit status is 0 after
    Ctrl-C, and 1 if --timeout ends the command before --max records have arrived.
    """
    shown = Shown(timestamps, offsets, headers, keys)
    printed = printer(format_text, shown, to_terminal=output.is_terminal())
    check_topic_name(topic, "consume")
    start = _one_start(from_beginning, offset, from_time, group, partition)
    connection = Connection(bootstrap, settings, client_file)
    consumer = connection.consumer(
        {
            "enable.partition.eof": True,
            # When looking for the end, every fetch that waits there delays the user.
            **({"fetch.wait.max.ms": 100} if exit_at_end or start.startswith("-") else {}),
            # If retention has deleted the next record, continue with the first that is left. In a
            # group, also the start of a partition without a committed offset.
            "auto.offset.reset": "latest" if group and not from_beginning else "earliest",
            **({"group.id": group, "enable.auto.commit": True} if group else {}),
        }
    )
    reading = Reading(connection, consumer, printed, max_count, timeout_s, exit_at_end)
    with _stop_on_signals(reading), contextlib.closing(consumer):
        existing = _partitions_of(connection, consumer, topic)
        if group:
            consumer.subscribe([topic])
        else:
            wanted = existing if partition is None else values.numbers(partition, "--partition")
            check_numbers(topic, wanted, existing)
            reading.assign(_starts(connection, reading, topic, wanted, start))
            if start == "latest" and offset is None and not exit_at_end and output.is_watched():
                output.note(
                    "Waiting for new records; use --from-beginning to read all. Ctrl-C ends."
                )
        reading.run()
    output.flush()
    output.progress_over()  # also clears the ^C that the terminal printed
    output.note(values.counted(reading.count, "record"))
    if reading.fell_short:
        output.leave(output.FAILED)


class Reading:
    """Polls and prints records until a limit, the end or a signal."""

    def __init__(
        self,
        connection: Connection,
        consumer: Consumer,
        printed: Printer,
        max_count: int | None,
        timeout_s: float | None,
        exit_at_end: bool,
    ) -> None:
        self.count = 0
        self.fell_short = False
        self._stop_asked = False
        self._connection = connection
        self._consumer = consumer
        self._printed = printed
        self._max_count = max_count
        self._timeout_s = timeout_s
        self._exit_at_end = exit_at_end
        self._at_end: set[tuple[str, int]] = set()
        # The end of each partition at the start: with --exit-at-end, a busy producer must not
        # keep the command running forever. Empty in a group.
        self._ends: dict[tuple[str, int], int] = {}

    def assign(self, starts: "list[tuple[TopicPartition, int]]") -> None:
        """Read each partition from its start offset; the second number is its current end."""
        for partition, end in starts:
            self._ends[partition.topic, partition.partition] = end
            if partition.offset >= end:
                self._at_end.add((partition.topic, partition.partition))
        self._consumer.assign([partition for partition, _ in starts])

    def start_of_last(self, partition: Partition, count: int, first: int, end: int) -> int:
        """The offset of the first of the last ``count`` records of a partition."""
        return last_records.start_of(
            self._connection, self._consumer, partition, count, first, end, lambda: self._stop_asked
        )

    def run(self) -> None:
        last_record_at = time.monotonic()
        while not self._stop_asked and not self._is_over():
            message = self._consumer.poll(_POLL_S)
            now = time.monotonic()
            if message is None:
                if self._connection.has_lost_all_brokers() and output.is_watched():
                    output.note("No broker is reachable; retrying. Ctrl-C ends.")
                if self._timeout_s is not None and now - last_record_at > self._timeout_s:
                    self.fell_short = self._max_count is not None
                    return
                continue
            before = self.count
            self._take(message)
            # No more than --max: in a group, every record that the client returns counts as read.
            room = _BATCH_COUNT if self._max_count is None else self._max_count - self.count
            if room > 0:
                for further in self._consumer.consume(min(room, _BATCH_COUNT), timeout=0):
                    self._take(further)
            if self.count > before:
                last_record_at = now
            output.flush()

    def _take(self, message: Message) -> None:
        partition = (message.topic() or "", message.partition() or 0)
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(partition)
            elif not error.retriable():
                raise self._connection.failed(error, f"reading {partition[0]}:{partition[1]}")
            return
        if self._exit_at_end and self._is_past_end(partition, message.offset()):
            return
        output.write(self._printed(_record(message)))
        self.count += 1

    def _is_past_end(self, partition: tuple[str, int], offset: int | None) -> bool:
        end = self._ends.get(partition)
        if end is None or offset is None:
            self._at_end.discard(partition)
            return False
        if offset + 1 >= end:
            self._at_end.add(partition)
        return offset >= end

    def stop(self) -> None:
        """End ``run`` before the next poll. May be called by a signal handler."""
        self._stop_asked = True

    def _is_over(self) -> bool:
        if self._max_count is not None and self.count >= self._max_count:
            return True
        if not self._exit_at_end:
            return False
        ours = self._ends.keys() or {(p.topic, p.partition) for p in self._consumer.assignment()}
        return bool(ours) and self._at_end >= ours


@contextlib.contextmanager
def _stop_on_signals(reading: Reading) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the loop between two polls, so that the member leaves its group."""

    def ask(number: int, frame: FrameType | None) -> None:
        reading.stop()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_start(
    from_beginning: bool,
    offset: str | None,
    from_time: str | None,
    group: str | None,
    partition: str | None,
) -> str:
    """The start as one text: earliest, latest, N, -N, or @ and milliseconds."""
    if sum((from_beginning, offset is not None, from_time is not None)) > 1:
        raise values.wrong("use only one of --from-beginning, --offset and --from-time")
    if group and (offset or from_time or partition):
        raise values.wrong(
            "--group cannot be combined with --partition, --offset or --from-time: the group "
            "assigns partitions and stores offsets. Remove --group, or use 'headrace groups reset'"
        )
    if from_beginning:
        return "earliest"
    if from_time is not None:
        return f"@{values.instant_ms(from_time, round(time.time() * 1000))}"
    if offset is None:
        return "latest"
    if offset not in ("earliest", "latest") and not offset.removeprefix("-").isdigit():
        raise values.wrong(f"--offset {offset}: expected a number, earliest, latest or -N")
    return offset


def _partitions_of(connection: Connection, consumer: Consumer, topic: str) -> list[int]:
    try:
        # A consumer's metadata request does not create the topic.
        found = consumer.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
    except KafkaException as failure:
        raise connection.failed(failure, f"topic {topic}") from None
    if found.error is not None and found.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise output.CommandFailed(no_such_topic(connection, topic))
        raise connection.failed(found.error, f"topic {topic}")
    return sorted(found.partitions)


def _starts(
    connection: Connection, reading: Reading, topic: str, wanted: list[int], start: str
) -> list[tuple[TopicPartition, int]]:
    """The start of each partition, and its current end."""
    admin = connection.admin()
    partitions = [(topic, number) for number in wanted]
    first = _known(connection, admin, partitions, offsets_of.EARLIEST)
    end = _known(connection, admin, partitions, offsets_of.LATEST)
    match start:
        case "earliest":
            begin = first
        case "latest":
            begin = end
        case _ if start.startswith("@"):
            spec = offsets_of.at_time(int(start[1:]))
            found = offsets_of.listed(connection, admin, partitions, spec)
            # No record is that late yet: start at the end.
            begin = {
                key: end[key] if found[key].offset is None else found[key].offset or 0
                for key in partitions
            }
        case _ if start.startswith("-"):
            begin = {
                key: reading.start_of_last(key, int(start[1:]), first[key], end[key])
                for key in partitions
            }
        case _:
            begin = dict.fromkeys(partitions, int(start))
            for key in partitions:
                if not first[key] <= begin[key] <= end[key]:
                    raise output.CommandFailed(
                        f"offset {start} is out of range: {key[0]}:{key[1]} starts at {first[key]} "
                        f"and ends before {end[key]}"
                    )
    return [(TopicPartition(*key, begin[key]), end[key]) for key in partitions]


def _known(
    connection: Connection,
    admin: AdminClient,
    partitions: list[Partition],
    spec: offsets_of.Spec,
) -> dict[Partition, int]:
    found = offsets_of.listed(connection, admin, partitions, spec)
    return {partition: answer.offset or 0 for partition, answer in found.items()}


def _record(message: Message) -> ConsumedRecord:
    timestamp_type, timestamp = message.timestamp()
    return ConsumedRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        timestamp if timestamp_type else None,
        timestamp_type,
        message.key(),
        message.value(),
        _headers(message),
    )


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    # The client's type also includes forms that only producers take.
    given: Any = message.headers()
    return given or []
