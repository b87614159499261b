"""Prepared requests for ``frames.c``: made and tried once here, then sent as fast as C can."""

import json
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from bench import load
from headrace.wire import schema
from headrace.wire.api import ApiKey, response_class
from headrace.wire.framing import encode_request, parse_response_header

_I32 = Struct(">i")
_STEP = Struct(">6i")
_IDENTITY = Struct(">qh")
NO_IDENTITY = (-1, -1)


class FrameClient:
    """One blocking connection on which any request can be asked, by the codec of Headrace."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "FrameClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def exchange(self, frame: bytes | bytearray) -> bytes:
        """The answer to a whole frame, without its length."""
        self._socket.sendall(frame)
        (size,) = _I32.unpack(self._file.read(4))
        return self._file.read(size)

    def ask(self, api_key: ApiKey, api_version: int, request: Any) -> Any:
        frame = encode_request(api_key, api_version, 1, "bench", request)
        return opened(api_key, api_version, self.exchange(frame))


def opened(api_key: ApiKey, api_version: int, answer: bytes) -> Any:
    """A response from its bytes."""
    _, position = parse_response_header(answer, 0, len(answer), api_key, api_version)
    decode = schema.decoder(response_class(api_key), api_version)
    response, _ = decode(answer, position, len(answer))
    return response


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
    """The steps that one connection goes through, over and over."""

    steps: Sequence[Step]
    identity: tuple[int, int] = NO_IDENTITY  # producer id and epoch

    def packed(self) -> bytes:
        head = _IDENTITY.pack(*self.identity) + _I32.pack(len(self.steps))
        return head + b"".join(step.packed() for step in self.steps)


def run(
    address: str,
    connections: Sequence[Connection],
    seconds: float,
    folder: Path,
    interval_ms: int = 0,
) -> dict[str, Any]:
    """What ``frames.c`` counted. With an interval, each connection sends once in it."""
    script = folder / "frames.script"
    script.write_bytes(_I32.pack(len(connections)) + b"".join(one.packed() for one in connections))
    program = load.compiled("frames", [load.HERE / "frames.c", load.HERE / "bare.h"], [])
    line = [str(program), address, str(script), str(seconds), str(interval_ms)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 60)
    script.unlink()
    if done.returncode != 0:
        raise load.LoadFailed(f"{address}: {done.stderr.strip()}")
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted
