"""``headrace produce``: send each line of stdin as a record."""

import sys
import time
from collections.abc import Iterable
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.cli import configs, output, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained, interruptible
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Acks,
    AcksOption,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Compression,
    CompressionOption,
    Format,
    OutputFormat,
    Topic,
    examples,
)
from headrace.cli.partitions import check_topic_name
from headrace.cli.record_lines import LineFormat, NotARecord

_PROGRESS_INTERVAL_S = 0.5
_DELIVERY_TIMEOUT_S = 30


KeySeparator = Annotated[
    str | None,
    typer.Option(
        "-k",
        "--key-separator",
        metavar="TEXT",
        help="Text between key and value of a line; may contain \\t or \\x01.",
    ),
]
ConstantHeaders = Annotated[
    str | None,
    typer.Option(
        "--headers",
        metavar="NAME=VALUE,...",
        help="Headers to add to every record.",
    ),
]
HeaderSeparator = Annotated[
    str | None,
    typer.Option(
        "--header-separator",
        metavar="TEXT",
        help="Each line starts with headers (name=value,name2=value2), followed by this text.",
    ),
]
HeaderPairSeparator = Annotated[
    str,
    typer.Option(
        "--header-pair-separator",
        metavar="TEXT",
        help="Text between the name and the value of a header in a line.",
    ),
]
NullMarker = Annotated[
    str | None,
    typer.Option(
        "--null-marker",
        metavar="TEXT",
        help="Text that means null: a null value is a tombstone.",
    ),
]
Partition = Annotated[
    int | None,
    typer.Option(
        "-p",
        "--partition",
        metavar="N",
        min=0,
        help="Send all records to this partition. By default the key determines the partition, as "
        "in Kafka's Java producer.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command(
        "produce",
        no_args_is_help=True,
        epilog=examples(
            "echo hello | headrace produce greetings",
            "headrace produce orders -k : < orders.txt                 # lines such as 17:pears",
            "headrace produce orders --headers source=web,run=7 --compression zstd < orders.txt",
            r"headrace produce orders --header-separator '\t' -k '\t'  # a=1,b=2<TAB>key<TAB>value",
        ),
    )(produce)


def produce(
    topic: Topic,
    key_separator: KeySeparator = None,
    headers: ConstantHeaders = None,
    header_separator: HeaderSeparator = None,
    header_pair_separator: HeaderPairSeparator = "=",
    null_marker: NullMarker = None,
    partition: Partition = None,
    acks: AcksOption = Acks.ALL,
    compression: CompressionOption = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Send each line of stdin to a topic.

    If a record cannot be delivered, its line number is reported and the exit status is 1. If the
    command is killed, records that it has not sent yet are lost.
    """
    try:
        constant_headers = tuple(values.headers(headers or ""))
    except ValueError as failure:
        raise values.wrong(f"--headers: {failure}") from None
    line_format = LineFormat(
        _separator(key_separator),
        _separator(header_separator),
        header_pair_separator,
        None if null_marker is None else null_marker.encode(),
        constant_headers,
    )
    check_topic_name(topic, "produce")
    connection = Connection(bootstrap, settings, client_file)
    producer = connection.producer(
        {
            "acks": acks.value,
            # A retried batch must be neither duplicated nor reordered.
            "enable.idempotence": acks is Acks.ALL,
            "compression.type": compression.value,
            "message.timeout.ms": _DELIVERY_TIMEOUT_S * 1000,
            # The topic limits the size of a record, not the client.
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.kbytes": 64 * 1024,
        }
    )
    check_topic(connection, producer, topic)
    sending = Sending(connection, producer, topic, partition, line_format)
    interrupted = False
    try:
        with interruptible():
            sending.send_all()
    except KeyboardInterrupt:
        interrupted = not sys.stdin.isatty()
    with interruptible():
        sending.finish()
    if format is Format.JSON:
        output.document(
            {
                "topic": topic,
                "delivered": sending.delivered,
                "failed": sending.failed,
                "bytes": sending.size,
            }
        )
    if interrupted:
        output.leave(output.INTERRUPTED)
    if sending.failed:
        output.leave(output.FAILED)


class Sending:
    """Sends lines as records, and counts what was read, delivered and failed."""

    def __init__(
        self,
        connection: Connection,
        producer: Producer,
        topic: str,
        partition: int | None,
        line_format: LineFormat,
    ) -> None:
        self.read = 0
        self.delivered = 0
        self.failed = 0
        self.size = 0  # bytes of the lines read
        self._connection = connection
        self._producer = producer
        self._topic = topic
        # librdkafka's "let the partitioner choose" is -1.
        self._partition = -1 if partition is None else partition
        self._line_format = line_format
        self._size_max: int | None = None  # max.message.bytes, once it is needed
        self._started_at = time.monotonic()
        self._shown_at = self._started_at

    def send_all(self) -> None:
        """Send the lines of stdin up to its end."""
        if sys.stdin.isatty():
            output.note("Enter one record per line; press Ctrl-D to finish.")
            self.send_typed(sys.stdin.buffer)
        else:
            self.send(sys.stdin.buffer)

    def send(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._send_line(line)
            self._producer.poll(0)
            if self.read % 256 == 0:
                self._show_progress()

    def send_typed(self, lines: Iterable[bytes]) -> None:
        """Send one line at a time, so that a user who types sees a failure immediately."""
        for line in lines:
            self._send_line(line)
            self._producer.flush(ANSWER_TIMEOUT_S)

    def finish(self) -> None:
        """Wait until every record is delivered or reported as failed."""
        while self._producer.flush(0.5):
            self._show_progress()
        output.progress_over()
        if output.is_watched() or self.failed:
            failed = f"; {self.failed} failed" if self.failed else ""
            delivered = values.counted(self.delivered, "record")
            output.note(f"Delivered {delivered} to {self._topic}{failed}.")

    def _send_line(self, line: bytes) -> None:
        self.read += 1
        number = self.read
        self.size += len(line)
        try:
            record = self._line_format.parse(_without_line_end(line))
        except NotARecord as failure:
            self._report(number, str(failure))
            return

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.delivered += 1
            elif error.code() == KafkaError.INVALID_RECORD and record.key is None:
                # The client does not pass on the broker's message.
                hint = "a compacted topic accepts only records with keys (--key-separator)"
                self._report(number, f"{explained(error)}; {hint}")
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._report(number, self._too_large(len(line)))
            else:
                self._report(number, self._reason(error))

        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=self._partition,
                    on_delivery=on_delivery,
                )
            except BufferError:
                # The client's queue is full: let it send before reading more.
                self._producer.poll(0.1)
                self._show_progress()
            except KafkaException as failure:
                self._report(number, self._reason(failure.args[0]))
                return
            else:
                return

    def _reason(self, error: KafkaError) -> str:
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            return f"topic {self._topic} has no partition {self._partition}"
        if error.code() == KafkaError._MSG_TIMED_OUT:
            trouble = self._connection.last_trouble()
            return f"not acknowledged in time{f' ({trouble})' if trouble else ''}"
        return explained(error)

    def _too_large(self, size: int) -> str:
        """The topic's limit, which the broker's response does not contain."""
        if self._size_max is None:
            settings = configs.read(self._connection, configs.Kind.TOPIC, self._topic)
            self._size_max = int(settings["max.message.bytes"].value or 0)
        what = f"{size:,} bytes exceed" if size > self._size_max else "its batch exceeds"
        return (
            f"MESSAGE_TOO_LARGE: {what} max.message.bytes of topic {self._topic}, "
            f"which is {self._size_max:,}"
        )

    def _report(self, number: int, reason: str) -> None:
        self.failed += 1
        output.progress_over()
        output.error(f"line {number}: {reason}")

    def _show_progress(self) -> None:
        now = time.monotonic()
        if now - self._shown_at < _PROGRESS_INTERVAL_S or not output.is_watched():
            return
        self._shown_at = now
        rate = self.size / (now - self._started_at) / 1e6
        output.progress(f"{self.delivered:,} of {self.read:,} records delivered, {rate:.1f} MB/s")


def _without_line_end(line: bytes) -> bytes:
    return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    if not text:
        raise values.wrong("a separator must not be empty")
    return values.unescaped(text).encode()


def check_topic(connection: Connection, producer: Producer, topic: str) -> None:
    """Fail before the first record if the topic is unusable.

    A metadata request for the topic makes the broker create it, if auto-creation is enabled. The
    user gets a note, because the name may be misspelled.
    """
    deadline = time.monotonic() + ANSWER_TIMEOUT_S / 4
    new = False
    while True:
        try:
            new = new or topic not in producer.list_topics(timeout=ANSWER_TIMEOUT_S).topics
            error = producer.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic].error
        except KafkaException as failure:
            raise connection.failed(failure, f"topic {topic}") from None
        if error is None or error.code() == KafkaError.LEADER_NOT_AVAILABLE:
            if new:
                output.note(f"note: topic {topic} did not exist; the broker has created it")
            return
        if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise connection.failed(error, f"topic {topic}")
        if time.monotonic() > deadline:
            raise output.CommandFailed(
                f"topic {topic} does not exist, and the broker does not create topics "
                f"automatically; create it with 'headrace topics create {topic}'"
            )
        time.sleep(0.1)
