"""What a process and its children have used: processor time and resident memory, from /proc."""

import contextlib
import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat, starting with the state; the name before it may contain blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def members(root_pid: int) -> list[int]:
    """``root_pid`` and its descendants that are alive now."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(_stat_fields(int(entry))[1])
            except OSError:
                continue  # the process ended after it was listed
    found = [root_pid]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(root_pid: int) -> float:
    """User and system time so far, including children that have ended.

    The kernel counts in ticks of 10 ms, and adds the time of an ended child to its parent.
    """
    ticks = 0
    for pid in members(root_pid):
        with contextlib.suppress(OSError):  # a child has just ended
            ticks += sum(int(field) for field in _stat_fields(pid)[11:15])
    return ticks / _TICKS_PER_SECOND


def resident_mb(root_pid: int) -> float:
    """Resident memory in MB (1,000,000 bytes), including mapped files."""
    kib = 0
    for pid in members(root_pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    kib += int(line.split()[1])
    return kib * 1024 / 1e6


def open_files(root_pid: int) -> int:
    """Open file descriptors."""
    count = 0
    for pid in members(root_pid):
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/fd"))
    return count
