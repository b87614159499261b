"""Prepared requests for ``frames.c``, which sends them."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from bench import load

_I32 = Struct(">i")
_STEP = Struct(">6i")
_IDENTITY = Struct(">qh")
NO_IDENTITY = (-1, -1)


@dataclass(frozen=True)
class Step:
    """One request of a connection; ``frames.c`` says what the positions mean."""

    frame: bytes | bytearray
    answer: bytes = b""
    code_at: int = -1
    identity_at: int = -1
    batch_at: int = -1
    identity_from: int = -1

    def packed(self) -> bytes:
        head = _STEP.pack(
            *(len(self.frame), len(self.answer), self.code_at),
            *(self.identity_at, self.batch_at, self.identity_from),
        )
        return head + self.frame + self.answer


@dataclass(frozen=True)
class Connection:
    """The steps that one connection repeats."""

    steps: Sequence[Step]
    identity: tuple[int, int] = NO_IDENTITY  # producer id and epoch

    def packed(self) -> bytes:
        head = _IDENTITY.pack(*self.identity) + _I32.pack(len(self.steps))
        return head + b"".join(step.packed() for step in self.steps)


def run(
    address: str,
    connections: Sequence[Connection],
    seconds: float,
    directory: Path,
    interval_ms: int = 0,
) -> dict[str, Any]:
    """Run ``frames.c``; return its counts. With an interval, each connection sends once in it."""
    script = directory / "frames.script"
    script.write_bytes(_I32.pack(len(connections)) + b"".join(one.packed() for one in connections))
    program = load.compiled("frames", [load.HERE / "frames.c", load.HERE / "bare.h"], [])
    line = [str(program), address, str(script), str(seconds), str(interval_ms)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 60)
    script.unlink()
    if done.returncode != 0:
        raise load.LoadFailed(f"{address}: {done.stderr.strip()}")
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted
