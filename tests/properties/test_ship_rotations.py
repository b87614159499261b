"""Rotations of every kind, in any order, with crashes: no line is lost silently or doubled."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.log_disk import HandShipper, LogDisk

LOG = "/log/app.log"

STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 40)),
    st.tuples(
        st.sampled_from(
            [
                "rename",
                "copytruncate",
                "slow copytruncate",
                "truncate",
                "delete",
                "compress",
                "scan",
                "read",
                "read without acknowledgement",
                "save",
                "crash",
            ]
        ),
        st.just(0),
    ),
)


class Rotations:
    """A program that writes numbered lines, and a rotation that keeps three old files."""

    def __init__(self):
        self.disk = LogDisk()
        self.shipper = HandShipper(self.disk)
        self.numbers = itertools.count()
        self.written: set[bytes] = set()
        self.destroyed = 0  # bytes that were deleted before they were sent

    def apply(self, step, count):
        if step == "write":
            self.write(count)
        elif step in ("scan", "save", "crash", "read"):
            getattr(self.shipper, step)()
        elif step == "read without acknowledgement":
            self.shipper.read(acknowledge=False)
        elif LOG in self.disk.names:
            getattr(self, step.replace(" ", "_"))()

    def write(self, count):
        for _ in range(count):
            line = b"%06d some text of a program\n" % next(self.numbers)
            self.written.add(line)
            self.disk.append(LOG, line)

    def shift(self):
        """Make room for a new ``.1``; the oldest file is deleted."""
        self.destroy(LOG + ".3")
        self.disk.delete(LOG + ".3")
        for number in (2, 1):
            if f"{LOG}.{number}" in self.disk.names:
                self.disk.rename(f"{LOG}.{number}", f"{LOG}.{number + 1}")

    def rename(self):
        self.shift()
        self.disk.rename(LOG, LOG + ".1")

    def copytruncate(self):
        self.shift()
        self.disk.copy(LOG, LOG + ".1")
        self.disk.truncate(LOG)

    def slow_copytruncate(self):
        """The shipper looks between the copy and the truncation."""
        self.shift()
        self.disk.copy(LOG, LOG + ".1")
        self.shipper.scan()
        self.shipper.read()
        self.disk.truncate(LOG)

    def truncate(self):
        self.destroy(LOG)
        self.disk.truncate(LOG)

    def delete(self):
        self.destroy(LOG)
        self.disk.delete(LOG)

    def compress(self):
        if LOG + ".2" in self.disk.names:
            self.destroy(LOG + ".2")
            self.disk.append(LOG + ".2.gz", b"\x1f\x8b\x08")
            self.disk.delete(LOG + ".2")

    def destroy(self, path):
        """The shipper sees the file once more, and may not have read all of it."""
        if path in self.disk.names:
            self.shipper.scan()
            sent = set(self.shipper.events.values())
            lines = bytes(self.disk.inodes[self.disk.names[path]]).splitlines(keepends=True)
            lost = [line for line in lines if line not in sent]
            self.destroyed += sum(map(len, lost))
            self.written.difference_update(lost)


@settings(max_examples=300)
@given(steps=st.lists(STEPS, min_size=3, max_size=40))
def test_every_line_is_sent_under_one_id_or_reported_as_lost(steps):
    rotations = Rotations()
    for step, count in steps:
        rotations.apply(step, count)
    rotations.shipper.settle()
    sent = list(rotations.shipper.events.values())
    assert set(sent) >= rotations.written, "lost"
    assert len(sent) == len(set(sent)), "doubled"
    assert rotations.shipper.lost >= rotations.destroyed, "lost silently"
