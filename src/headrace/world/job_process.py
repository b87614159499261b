"""The child process of a job: ``python -m headrace.world.job_process MODULE NICENESS``.

stdin    requests, each with its length in four bytes before it. The end of the stream ends
         the process at once, so that it never outlives its parent.
stdout   responses, framed alike
"""

import gc
import importlib
import os
import queue
import sys
import threading
import time

from headrace.world.files import SystemFiles
from headrace.world.job_host import LENGTH, Host


def main(module: str, niceness: int) -> None:
    os.nice(niceness)
    handle = importlib.import_module(module).handle
    host = Host(SystemFiles(), _respond, time.monotonic, time.sleep)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        request = requests.get()
        gc.disable()  # jobs make many objects and no cycles
        handle(request, host)
        gc.enable()


def _read_requests(requests: "queue.SimpleQueue[bytes]") -> None:
    # Not through sys.stdin: a thread that waits there would hold its lock at interpreter exit.
    while True:
        (size,) = LENGTH.unpack(_read(LENGTH.size))
        requests.put(_read(size))


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def _respond(response: bytes) -> None:
    sys.stdout.buffer.write(LENGTH.pack(len(response)) + response)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
