"""A child process in a session of its own that ends when its parent ends, even by kill -9.

Signals of the terminal reach the parent alone. The child and a small shell beside it are one
process group. The shell waits for the end of a pipe that only the parent holds, and then kills the
group. This works on Linux and macOS. Linux's "parent death signal" does not exist on macOS and
follows the thread that started the child. A process ID can belong to another process by then; the
shell's own group cannot. The shell takes less than 1 MB.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# A shell in the background reads from /dev/null by default, hence the descriptor 3.
_GUARD = """
exec 3<&0
(while read -r _ <&3; do :; done; kill -KILL 0) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


class Child:
    """A running program; ``process_id`` is its own, not the shell's."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.process_id = self._process.pid
        self._is_asked_to_end = False
        self.log_path = log_path

    @property
    def exit_status(self) -> int | None:
        """None while it runs; a negative number is the signal that ended it."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit status; None if the program still runs after ``timeout_s``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def ask_to_end(self) -> None:
        """Send SIGTERM, once: a broker takes a second one as the request to stop at once."""
        if not self._is_asked_to_end:
            self._is_asked_to_end = True
            self._process.terminate()

    def stop(self, timeout_s: float) -> None:
        """Ask the program to end; kill it if it has not ended in time."""
        self.ask_to_end()
        self.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Kill the program and the shell beside it, and wait for their end."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        # The group exists as long as the shell does, and only this class ends the shell.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process_id, signal.SIGKILL)
        self._process.wait()
        pipe.close()

    def last_lines(self, count: int = 5) -> str:
        """The end of its log, for an error message. Indented lines are left out: stack traces."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if line and not line[0].isspace()][-count:])
