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


def test_a_day_goes_through_the_pipeline(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "pipeline", "--once"]
        + ["--events", "5000", "--data", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5,000 events to 13 topics" in ran.stdout
    tiers = re.findall(r"(broker|table|job) +([\d,]+) +([\d,]+) +(\d+) +(\d+)", ran.stdout)
    broker, job, table = sorted(tiers)
    assert (broker[1:], table[1:]) == (("5,000", "5,000", "0", "0"),) * 2
    # Several jobs read the same topics.
    assert job[1] == job[2] and int(job[1].replace(",", "")) > 5_000 and job[3:] == ("0", "0")
    for job in JOBS:
        assert re.search(rf"{job} +[\d,]+ events → +[1-9]", ran.stdout), job
        assert re.search(rf"headrace-{job}-[\w-]+ +0\n", ran.stdout), f"the lag of {job}"
    check_results(parts_of(ran.stdout))
    views = DeltaTable(str(tmp_path / "warehouse" / "page_days")).to_pyarrow_table()
    assert sum(views.column("views").to_pylist()) > 1_000
    (page,) = tmp_path.glob("daily-*.html")
    assert "</html>" in page.read_text()[-100:]


def parts_of(printed):
    """The rows below each heading of the results, without the names of the columns."""
    parts = re.split(r"\n\n   (?=\S)", printed)
    return {lines[0]: lines[2:] for lines in (part.splitlines() for part in parts[1:])}


def check_results(parts):
    """Every part has rows, and the numbers of estimates have their error."""
    pages = parts["Pages with the most views"]
    assert len(pages) == 5
    for row in pages:
        assert re.fullmatch(r" +/\S* +[\d,]+ +≈ [\d,]+ \(± 1.6 %\)", row), row
    feed = parts["The feed of one member"]
    assert feed and all(
        re.search(r"\d{4}-\d\d-\d\d .*(post|vote|comment|follow)", row) for row in feed
    )
    best = parts["The best of each category"]
    assert best and all(re.search(r"\w+ +\d+ +\d\.\d+", row) for row in best)
    incidents = parts["Security incidents"]
    assert incidents and all(re.search(r"[\w-]+ +\d+\.\S+ +\d{4}-\S+", row) for row in incidents)
    assert "Alerts of services" in parts


@pytest.mark.long
def test_the_live_part_shows_what_moves_and_ctrl_c_ends_it_quietly(tmp_path):
    command = ["demo", "pipeline", "--events", "5000", "--data", str(tmp_path)]
    with on_terminal(*command) as terminal:
        shows = {
            "loaded": r"[1-9][\d,]* events, [1-9][\d,]* rows loaded, [\d,]+ alerts",
            "pages": r"top pages of 5 minutes: /\S* \d+",
            "lag": "lag: " + ".*".join(f"{job}/[\\w-]+ [\\d,]+" for job in sorted(JOBS)),
        }
        terminal.read_until(
            lambda: all(re.search(one, terminal.text) for one in shows.values()), 900
        )
        shown = len(terminal.text)
        terminal.press(CTRL_C)
        terminal.read_until(lambda: terminal.process.poll() is not None, 300)
    assert terminal.process.returncode == 0, terminal.text
    after = terminal.text[shown:]
    assert "finishing the batches" in after
    assert len(after.splitlines()) < 30, after
    assert not re.search("Exception|Error|Traceback", after), after
