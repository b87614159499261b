"""Moves between log directories that wait at a gate."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.storage.log_copy import LogCopy


class Gate(threading.Event):
    """Copying waits until this is set; counts how many copy at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.copying = 0
        self.copying_max = 0


@contextmanager
def held_moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """For brokers in this process."""
    gate = Gate()
    append = LogCopy.append

    def append_behind_the_gate(self, source, name, size, **how):
        gate.copying += 1
        gate.copying_max = max(gate.copying_max, gate.copying)
        try:
            while not gate.is_set() and not self.is_over():
                gate.wait(0.01)
            append(self, source, name, size, **how)
        finally:
            gate.copying -= 1

    monkeypatch.setattr(LogCopy, "append", append_behind_the_gate)
    yield gate
    gate.set()
