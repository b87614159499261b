"""The output on a terminal: color, questions, progress; no truncation."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

from headrace.testing import Cluster

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def terminal():
    """A pseudo-terminal: the end that the test reads, and the end of the program."""
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def rest_of(screen: int) -> bytes:
    """The output until the program ends."""
    text = b""
    while True:
        try:
            piece = os.read(screen, 65536)
        except OSError:  # Linux reports EIO instead of the end of the file
            return text
        if not piece:
            return text
        text += piece


def started_on(screen: int, environment, arguments, stdin) -> subprocess.Popen:
    """Start a program that alone holds the terminal, so that its end is noticed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        stdin=stdin,
        stdout=screen,
        stderr=screen,
        env={**environment, "TERM": "xterm"},
    )
    os.close(screen)
    return process


def seen(environment, *arguments, stdin=subprocess.DEVNULL) -> str:
    with terminal() as (ours, theirs):
        process = started_on(theirs, {**environment, "COLUMNS": "60"}, arguments, stdin)
        text = rest_of(ours)
        assert process.wait(30) == 0, text
    return text.decode()


def test_a_table_is_colored_on_a_terminal_and_plain_in_a_pipe(headrace, topic, environment):
    headrace("topics", "create", topic)
    drawn = seen(environment, "topics", "list")
    assert ESCAPES.search(drawn)
    assert topic in ESCAPES.sub("", drawn)
    assert not ESCAPES.search(headrace("topics", "list").out)


def test_a_long_value_is_wrapped_not_truncated(headrace, topic, environment):
    name = f"{topic}-" + "long" * 40
    headrace("topics", "create", name)
    heading, *lines = ESCAPES.sub("", seen(environment, "topics", "list")).splitlines()
    first_column = "".join(line[: heading.index("PARTITIONS")].strip() for line in lines)
    assert name in first_column


def test_describe_keeps_its_title_in_one_piece(headrace, topic, environment):
    headrace("topics", "create", topic, "-c", "retention.ms=123456789", "-c", "flush.ms=5")
    drawn = ESCAPES.sub("", seen(environment, "topics", "describe", topic))
    assert "Configs: flush.ms=5,retention.ms=123456789" in drawn.splitlines()[0]


def test_produce_prints_the_number_of_records_on_a_terminal(headrace, topic, environment, tmp_path):
    lines = tmp_path / "lines"
    lines.write_bytes(b"x\n" * 1000)
    with lines.open("rb") as stdin:
        drawn = ESCAPES.sub("", seen(environment, "produce", topic, stdin=stdin))
    assert f"Delivered 1,000 records to {topic}." in drawn


def test_typed_lines_are_sent_one_by_one(headrace, topic):
    ran = headrace("produce", topic, stdin=b"one\ntwo\n", typed=True)
    assert "press Ctrl-D to finish" in ran.err
    assert headrace("consume", topic, "--from-beginning", "-e").lines == ["one", "two"]


def test_perf_draws_in_color(headrace, topic, environment):
    headrace("topics", "create", topic)
    assert ESCAPES.search(seen(environment, "perf", "latency", topic, "-n", "10"))


def interrupted_after(environment, awaited: bytes, *arguments) -> tuple[int, bytes]:
    """The status, and the output after a Ctrl-C that follows the awaited text."""
    with terminal() as (ours, theirs):
        process = started_on(theirs, environment, arguments, theirs)
        text = b""
        while awaited not in text:
            text += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        rest = rest_of(ours)
        return process.wait(30), rest


def test_after_ctrl_c_the_next_line_starts_at_the_margin(headrace, topic, environment):
    headrace("topics", "create", topic)
    asked = interrupted_after(environment, b"[y/N] ", "topics", "delete", topic)
    assert asked == (130, b"\r\n")
    headrace("produce", topic, stdin=b"one\n")
    read = interrupted_after(environment, b"one\r\n", "consume", topic, "--from-beginning")
    assert read == (0, b"\r\x1b[2K1 record\r\n")


def test_waiting_for_new_records_prints_how_to_read_the_others(headrace, topic, environment):
    headrace("produce", topic, stdin=b"one\n")
    waited = interrupted_after(environment, b"Ctrl-C ends.\r\n", "consume", topic)
    assert waited == (0, b"\r\x1b[2K0 records\r\n")


def test_a_progress_bar_is_drawn_while_partitions_move(environment, tmp_path):
    """The target is cut off from the leader until the bar has been seen."""
    config = {"default.replication.factor": 1, "min.insync.replicas": 1}
    with Cluster(brokers=2, config=config, topics=["orders"]) as cluster:
        cluster.produce("orders", [("k", "value" * 1000)] * 20)
        target = 1 - cluster.leader_of("orders")
        cluster.cut(0, 1)
        file = tmp_path / "moves.json"
        entry = {"topic": "orders", "partition": 0, "replicas": [target]}
        file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        arguments = ("reassign", "execute", "--file", str(file))
        with terminal() as (ours, theirs):
            process = started_on(
                theirs,
                {**environment, "HEADRACE_BOOTSTRAP": cluster.bootstrap_servers, "COLUMNS": "150"},
                arguments,
                subprocess.DEVNULL,
            )
            drawn = ""
            while not re.search(
                r"\[ {30}\] +0%  0 of 1 partition  0 B of [\d.]+ KiB  0 B/s", drawn
            ):
                drawn += os.read(ours, 65536).decode()
            cluster.heal()
            rest = rest_of(ours).decode()
            assert process.wait(30) == 0, rest
    # The bar is gone, and the result has a line of its own.
    assert rest.endswith("\r\x1b[2KReassigned 1 partition\r\n")
