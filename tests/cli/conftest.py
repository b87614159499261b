"""One broker for all tests of the command line, and a topic for each test."""

import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.cli.main import main
from headrace.testing import Broker

SOURCE = Path(__file__).parents[2] / "src"
_numbers = itertools.count()


class Ran(NamedTuple):
    """The output and the status of a command."""

    out: str
    err: str
    status: int

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Keyboard(io.TextIOWrapper):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def headrace(
    broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run a command in this process and check its status."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap_servers)

    def run(*arguments: str, stdin: bytes = b"", typed: bool = False, status: int = 0) -> Ran:
        source = Keyboard if typed else io.TextIOWrapper
        monkeypatch.setattr("sys.stdin", source(io.BytesIO(stdin)))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capfd.readouterr()
        assert ended.value.code == status, printed.err or printed.out
        return Ran(printed.out, printed.err, status)

    return run


@pytest.fixture
def environment(broker: Broker, tmp_path: Path) -> dict[str, str]:
    """The environment of a command in its own process."""
    return {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "HEADRACE_BOOTSTRAP": broker.bootstrap_servers,
        # Only this test finds its daemons.
        "XDG_RUNTIME_DIR": str(tmp_path),
    }


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start commands in their own processes; those that still run at the end are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**environment, **options.pop("env", {})},
            **options,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
