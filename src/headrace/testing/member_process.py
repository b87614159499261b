"""A broker of a test's cluster in a child process: the parent's side, and the child's program.

The parent sends one JSON line per call of a ``Member`` and reads one JSON line back: null, or the
text of an error. The child ends when its pipe from the parent closes, so a test that dies leaves
no broker behind.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from headrace.model.errors import ErrorCode
from headrace.testing.network_faults import Impairment
from headrace.testing.runners import BrokerFailed

_STOP_TIMEOUT_S = 30
_LOG_TAIL_LENGTH = 2000


class ProcessMember:
    """The parent's side. The child logs to ``headrace-test.log`` in its data directory."""

    def __init__(
        self, settings: Mapping[str, str], impairments: Mapping[int, Impairment], data: Path
    ) -> None:
        self._setup = {"settings": dict(settings), "impairments": _as_json(impairments)}
        self._data = data
        self._log_path = data / "headrace-test.log"
        self._child: subprocess.Popen[str] | None = None
        self._answers: IO[str] | None = None
        self._calling = threading.Lock()
        self._is_paused = False
        self._unanswered = 0  # calls that were sent while the child was paused
        self.host, self.port = "127.0.0.1", 0

    @property
    def process_id(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    def begin(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "headrace.testing.member_process", str(writing)]
        try:
            with self._log_path.open("ab") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                    pass_fds=(writing,),
                    start_new_session=True,  # Ctrl-C reaches the test alone
                )
        finally:
            os.close(writing)
        self._answers = os.fdopen(reading)
        self._send(self._setup)

    def wait_started(self) -> None:
        try:
            self.host, self.port = self._receive()
        except BrokerFailed:
            self.kill()
            raise

    def stop(self) -> None:
        try:
            self._call("stop")
            assert self._child is not None
            self._child.wait(_STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        assert self._child is not None and self._answers is not None, "not started"
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # an unsent call, which nothing waits for
                self._child.stdin.close()
        self._answers.close()

    def pause(self) -> None:
        os.kill(self.process_id, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)
        self._is_paused = False

    def impair(self, impairments: Mapping[int, Impairment]) -> None:
        self._call("impair", _as_json(impairments))

    def fill_disk(self) -> None:
        self._call("fill_disk")

    def free_disk(self) -> None:
        self._call("free_disk")

    def fail(self, api_key: int, code: ErrorCode, times: int | None) -> None:
        self._call("fail", int(api_key), int(code), times)

    def delay(self, api_key: int, seconds: float) -> None:
        self._call("delay", int(api_key), seconds)

    # --- the pipe

    def _call(self, method: str, *arguments: Any) -> None:
        """Wait for the answer, unless the child is paused: it acts when it resumes."""
        with self._calling:
            self._send([method, *arguments])
            self._unanswered += 1
            while self._unanswered and not self._is_paused:
                self._unanswered -= 1
                self._receive()

    def _send(self, message: Any) -> None:
        assert self._child is not None and self._child.stdin is not None, "not started"
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self) -> Any:
        assert self._answers is not None, "not started"
        line = self._answers.readline()
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "error" in answer:
            raise BrokerFailed(f"{answer['error']}\n{self._log_tail()}")
        return answer["result"]

    def _ended(self) -> BrokerFailed:
        assert self._child is not None
        status = self._child.wait(_STOP_TIMEOUT_S)
        return BrokerFailed(f"the broker exited with status {status}:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-_LOG_TAIL_LENGTH:]


def _as_json(impairments: Mapping[int, Impairment]) -> list[list[Any]]:
    return [[port, *impairment] for port, impairment in impairments.items()]


def _from_json(impairments: list[list[Any]]) -> dict[int, Impairment]:
    return {port: Impairment(cut, delay_s) for port, cut, delay_s in impairments}


def serve(calls: IO[str], answers: IO[str]) -> None:
    """The child's program: a broker, and a loop that obeys the parent."""
    from headrace.testing.members import ThreadMember
    from headrace.world.event_loop import new_event_loop

    setup = json.loads(calls.readline())
    try:
        member = ThreadMember(
            setup["settings"], _from_json(setup["impairments"]), new_loop=new_event_loop
        )
        member.begin()
        member.wait_started()
    except Exception as error:  # noqa: BLE001 - the parent raises it
        _answer(answers, error=f"the broker cannot start: {error}")
        return
    _answer(answers, result=[member.host, member.port])
    for line in calls:
        method, *arguments = json.loads(line)
        try:
            match method, arguments:
                case "impair", [impairments]:
                    member.impair(_from_json(impairments))
                case "fail", [api_key, code, times]:
                    member.fail(api_key, ErrorCode(code), times)
                case _:
                    getattr(member, method)(*arguments)
        except BrokerFailed as failure:
            _answer(answers, error=str(failure))
        else:
            _answer(answers, result=None)
        if method == "stop":
            return
    # The parent has gone, so there is no test to serve and no reader of an error.
    os._exit(1)


def _answer(answers: IO[str], **answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    serve(sys.stdin, os.fdopen(int(sys.argv[1]), "w"))
