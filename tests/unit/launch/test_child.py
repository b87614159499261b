"""A child process ends with its parent, and is stopped cleanly or killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.launch.child import Child

LIMIT_S = 20
SOURCE = Path(__file__).parents[3] / "src"
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def wait_until(condition) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(process_id: int) -> bool:
    """A zombie has ended, even if its new parent has not noticed yet."""
    ran = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True
    )
    return ran.stdout.strip()[:1] not in ("", "Z")


def group_of(leader: int) -> list[int]:
    ran = subprocess.run(["ps", "-A", "-o", "pid=,pgid="], capture_output=True, text=True)
    pairs = (map(int, line.split()) for line in ran.stdout.splitlines())
    return [process_id for process_id, group in pairs if group == leader]


def test_a_child_prints_to_its_log_and_returns_its_status(tmp_path):
    child = Child(["sh", "-c", "echo hello; echo there >&2; exit 3"], tmp_path / "log")
    assert child.wait(LIMIT_S) == child.exit_status == 3
    child.kill()
    assert child.last_lines() == "hello\nthere"
    assert child.last_lines(1) == "there"


def test_a_child_gets_its_environment_and_no_input(tmp_path):
    child = Child(["sh", "-c", "cat; echo $NAME"], tmp_path / "log", {**os.environ, "NAME": "x"})
    assert child.wait(LIMIT_S) == 0
    child.kill()
    assert child.last_lines() == "x"


def test_stop_asks_first(tmp_path):
    child = Child(["sleep", "100"], tmp_path / "log")
    assert child.exit_status is None and child.wait(0.01) is None
    group = group_of(child.process_id)
    assert child.process_id in group and len(group) == 2
    child.stop(LIMIT_S)
    assert child.exit_status == -signal.SIGTERM
    wait_until(lambda: not any(map(is_running, group)))
    child.stop(LIMIT_S)  # nothing more to do


def test_a_child_is_asked_once(tmp_path):
    """A second signal would stop a broker that is flushing its logs."""
    counts = "trap 'echo asked' TERM; echo ready; for n in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done"
    child = Child(["sh", "-c", counts], tmp_path / "log")
    wait_until(lambda: child.last_lines() == "ready")
    child.ask_to_end()
    wait_until(lambda: child.last_lines(1) == "asked")
    child.stop(LIMIT_S)
    assert child.exit_status == 0
    assert child.last_lines() == "ready\nasked"


def test_stop_kills_what_does_not_end(tmp_path):
    child = Child(["sh", "-c", STUBBORN], tmp_path / "log")
    wait_until(lambda: child.last_lines() == "ready")
    child.stop(0.1)
    assert child.exit_status == -signal.SIGKILL
    wait_until(lambda: not any(map(is_running, group_of(child.process_id))))


def test_a_signal_to_the_parents_group_does_not_reach_a_child(tmp_path):
    child = Child(["sleep", "100"], tmp_path / "log")
    assert os.getpgid(child.process_id) != os.getpgid(0)
    child.kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(tmp_path, end):
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(SOURCE)!r})
from headrace.launch.child import Child
child = Child(["sh", "-c", {STUBBORN!r}], Path({str(tmp_path / "log")!r}))
print(child.process_id, flush=True)
time.sleep(100)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as printed:
        process_id = int(printed.readline())
        wait_until((tmp_path / "log").read_text)
        assert is_running(process_id)
        parent.send_signal(end)
        parent.wait()
    wait_until(lambda: not any(map(is_running, group_of(process_id))))
