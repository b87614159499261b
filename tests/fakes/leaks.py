"""Fail if threads or child processes outlive the test, or the tests, that started them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    threads = set(threading.enumerate())
    children = _children()
    yield
    # Threads of executors end a moment after their loop; librdkafka's are not Python's.
    left = [t for t in threading.enumerate() if t not in threads and not t.daemon]
    for thread in left:
        thread.join(5)
    alive = [t.name for t in left if t.is_alive() and not _of_session(t)]
    assert not alive, f"threads left behind: {alive}"
    orphans = _children() - children
    assert not orphans, f"child processes left behind: {orphans}"


def _of_session(thread: threading.Thread) -> bool:
    """A broker shared by a session starts its workers in whichever test first needs them.

    pytest's timeout of the last test still runs when what a module shares is closed.
    """
    return thread.name.startswith(("asyncio_", "headrace", "pytest_timeout"))


def _children() -> set[str]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(path.read_text().split()) if path.exists() else set()
