"""``headrace demo pipeline``: from events to a report, then live on a terminal until Ctrl-C."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from deltalake import DeltaTable

from headrace.cli import demo_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = ("activity", "feed", "ranking", "security", "operations")
CTRL_C = b"\x03"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command):
        self.text = ""
        ours, theirs = pty.openpty()
        self._ours = ours
        environment = {**os.environ, "PYTHONWARNINGS": "", "TERM": "dumb"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
            # The terminal sends Ctrl-C to the process group that it controls.
            preexec_fn=lambda: (os.setsid(), os.close(os.open(os.ttyname(0), os.O_RDWR))),
        )  # fmt: skip
        os.close(theirs)

    def read_until(self, is_over, seconds):
        give_up_at = time.monotonic() + seconds
        while not is_over():
            assert time.monotonic() < give_up_at, self.text
            if not select.select([self._ours], [], [], 0.1)[0]:
                continue
            try:
                self.text += os.read(self._ours, 1 << 16).decode(errors="replace")
            except OSError:  # the last process of the terminal has ended
                break

    def press(self, keys):
        os.write(self._ours, keys)

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)


@contextmanager
def on_terminal(*arguments):
    terminal = Terminal([sys.executable, "-m", "headrace", *arguments])
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_day_goes_through_the_pipeline_and_ctrl_c_ends_the_live_part(tmp_path):
    command = ["demo", "pipeline", "--events", "5000", "--data", str(tmp_path)]
    with on_terminal(*command) as terminal:
        terminal.read_until(lambda: re.search(r"security .* events in .* lag", terminal.text), 900)
        day, _, live = terminal.text.partition("7. Live")
        shown = len(terminal.text)
        terminal.press(CTRL_C)
        terminal.read_until(lambda: terminal.process.poll() is not None, 300)
    assert terminal.process.returncode == 0, live
    after = terminal.text[shown:]
    assert "finishing the batches" in after
    assert len(after.splitlines()) < 30, after
    assert not re.search("Exception|Error|Traceback", after), after

    assert "5,000 events to 13 topics" in day
    tiers = re.findall(r"(broker|table) +([\d,]+) +([\d,]+) +(\d+) +(\d+)", day)
    assert tiers == [("broker", "5,000", "5,000", "0", "0"), ("table", "5,000", "5,000", "0", "0")]
    for job in JOBS:
        assert re.search(rf"{job} +[\d,]+ events → +[1-9]", day), job
    views = DeltaTable(str(tmp_path / "warehouse" / "page_days")).to_pyarrow_table()
    assert sum(views.column("views").to_pylist()) > 1_000
    (page,) = tmp_path.glob("daily-*.html")
    assert "</html>" in page.read_text()[-100:]


@pytest.mark.parametrize(
    ("is_terminal", "given", "goes_on"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_it_goes_on_live_on_a_terminal_or_if_asked(
    tmp_path, monkeypatch, is_terminal, given, goes_on
):
    steps = []

    class Run:
        def __init__(self, *_):
            pass

        def day(self, events):
            steps.append("day")

        def go_on_live(self):
            steps.append("live")

    @contextmanager
    def no_session(_):
        yield None

    monkeypatch.setattr(demo_pipeline, "_Run", Run)
    monkeypatch.setattr(demo_pipeline, "_session", no_session)
    monkeypatch.setattr(demo_pipeline.output, "is_terminal", lambda: is_terminal)
    demo_pipeline.demo_pipeline(1_000, tmp_path, given)
    assert steps == (["day", "live"] if goes_on else ["day"])
