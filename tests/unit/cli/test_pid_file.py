"""The holder of a pid file. It is a separate process, because locks are per process."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import pid_file

SOURCE = Path(pid_file.__file__).parents[2]
HOLD = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from headrace.cli.pid_file import PidFile
with PidFile(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / pid_file.NAME


@pytest.fixture
def holding(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(SOURCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == "held\n"
    yield child
    child.stdin.close()
    child.wait(10)
    child.stdout.close()


def test_a_missing_or_stale_file_has_no_holder(path):
    assert pid_file.holder_of(path) is None
    path.write_text("1\n")  # a running process that is not a broker
    assert pid_file.holder_of(path) is None


def test_a_running_holder_is_found_and_its_end_is_noticed(path, holding):
    holder = pid_file.holder_of(path)
    assert holder is not None and holder.process == holding.pid
    assert not holder.has_ended()
    holding.stdin.write("\n")
    holding.stdin.flush()
    assert holding.stdout.readline() == "released\n"
    assert not path.exists()
    # The broker has stopped, but the process still runs: only its end counts.
    assert not holder.has_ended()
    holding.stdin.write("\n")
    holding.stdin.flush()
    holding.wait(10)
    assert holder.has_ended()
    holder.close()


def test_two_cannot_hold_one_file(path, holding):
    with pytest.raises(OSError):
        pid_file.PidFile(path)
    assert path.read_text() == f"{holding.pid}\n"
