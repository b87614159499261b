"""A stream: what is sent while it pauses, and what is held back."""

import os

import pytest

from headrace.ship import stream as stream_module
from headrace.ship.events import Splitter
from headrace.ship.stream import StreamShipper

START = r"\d\d "


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(stream_module, "_WAIT_S", 0)


class Collecting:
    """A sender that keeps the events."""

    failure = None

    def __init__(self):
        self.values = []
        self.offsets = []

    def send(self, delivery):
        self.values += delivery.events.values
        self.offsets += delivery.events.offsets
        return True

    def poll(self, seconds):
        pass

    def flush(self, seconds):
        pass

    def failed(self, error):
        raise AssertionError(error)

    def publish_counts(self, done):
        done()


class Stream:
    """Plays a script to a shipper: one step for each turn of its loop."""

    def __init__(self, start=None):
        self.sent = Collecting()
        self.now = 0.0
        self._start = start

    def play(self, *steps):
        """Write bytes, let seconds pass, or call; then end the stream."""
        ends = os.pipe()
        reader, writer = os.fdopen(ends[0], "rb", 0), os.fdopen(ends[1], "wb", 0)
        left = list(steps)

        def turn():
            step = left.pop(0) if left else None
            if isinstance(step, bytes):
                writer.write(step)
                left.insert(0, 0.0)  # the next turn reads it
            elif isinstance(step, float):
                self.now += step
            elif step is not None:
                step()
            else:
                writer.close()

        with reader, writer:
            splitter = Splitter(100, self._start)
            shipper = StreamShipper(
                reader.fileno(), self.sent, splitter, "id", clock=lambda: self.now
            )
            shipper.run(turn, flush_s=0)

    def expect(self, *values):
        """A step: exactly these events are sent by now."""

        def check():
            assert self.sent.values == list(values)

        return check


@pytest.mark.parametrize("start", [None, START])
def test_a_line_that_is_written_in_two_parts_is_one_event(start):
    stream = Stream(start)
    stream.play(b"01 ab", 60.0, 60.0, stream.expect(), b"cd\n", 60.0, stream.expect(b"01 abcd"))
    assert stream.sent.values == [b"01 abcd"]


def test_lines_of_an_event_are_awaited_as_those_of_a_file_are():
    stream = Stream(START)
    stream.play(
        b"01 a\n", 1.9, stream.expect(), b" at x\n at", 1.9, stream.expect(), 0.2,
        stream.expect(b"01 a\n at x"), b" y\n02 b\n", stream.expect(b"01 a\n at x", b" at y"),
    )  # fmt: skip
    assert stream.sent.values == [b"01 a\n at x", b" at y", b"02 b"]
    assert stream.sent.offsets == [0, 11, 17]


def test_the_end_of_a_stream_ends_its_last_line():
    stream = Stream()
    stream.play(b"one\ntwo", stream.expect(b"one"))
    assert stream.sent.values == [b"one", b"two"]
