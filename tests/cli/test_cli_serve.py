"""``headrace serve``, ``stop`` and ``demo``, each in its own process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

LIMIT_S = 30
# tests/spark/test_demo.py tests the Spark job of the demo.
NO_JAVA = {"PATH": "/nowhere", "JAVA_HOME": ""}


def wait_for(path: Path, process) -> str:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text().strip()


def is_served(address: str) -> bool:
    admin = AdminClient({"bootstrap.servers": address})
    return bool(admin.describe_cluster().result(LIMIT_S).nodes)


def test_serve_prints_its_address_and_shuts_down_cleanly(start, tmp_path):
    ready = tmp_path / "ready"
    process = start("serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready))
    address = wait_for(ready, process)
    line = process.stdout.readline().decode()
    assert address in line and str(tmp_path / "headrace-data") in line
    assert is_served(address)
    assert (tmp_path / "headrace-data" / "headrace.pid").read_text() == f"{process.pid}\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, b"")
    assert not (tmp_path / "headrace-data" / "headrace.pid").exists()
    assert (tmp_path / "headrace-data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    ("listen", "is_exposed"), [(":0", True), ("0.0.0.0:0", True), ("0", False), ("[::1]:0", False)]
)
def test_a_listener_on_every_interface_produces_a_warning(start, tmp_path, listen, is_exposed):
    ready = tmp_path / "ready"
    process = start("serve", "--listen", listen, "--ready-file", str(ready))
    wait_for(ready, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert (b"open on every network interface without authentication" in err) == is_exposed


def test_serve_warns_of_settings_without_effect_and_old_names(start, tmp_path):
    ready = tmp_path / "ready"
    process = start(
        "serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready), "-X", "num.io.threads=9",
        "-X", "log.retention.bogus=1", "-X", "log.cleanup.interval.mins=5",
    )  # fmt: skip
    wait_for(ready, process)
    process.terminate()
    _, err = process.communicate(timeout=LIMIT_S)
    log = err.decode()
    assert "num.io.threads has no effect: one event loop serves all connections" in log
    assert "log.retention.bogus is not a broker setting" in log
    assert "log.cleanup.interval.mins is an old name: using" in log


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_log_lines_go_to_stderr_in_the_requested_format(start, tmp_path, log_format):
    ready = tmp_path / "ready"
    process = start(
        "serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready), "--log-format", log_format,
        "-X", "no.such.setting=1",
    )  # fmt: skip
    wait_for(ready, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    lines = err.decode().splitlines()
    assert any("no.such.setting" in line for line in lines)
    assert any("Shutting down: received SIGINT" in line for line in lines)
    for line in lines:
        if log_format == "json":
            assert {"ts", "level", "logger", "message"} <= json.loads(line).keys()
        else:
            assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARN|ERROR) ", line)


def test_serve_imports_neither_typer_rich_nor_a_client(environment, tmp_path):
    program = (
        "import sys, headrace.broker.broker as app\n"
        "start = app.Broker.start\n"
        "async def started(self):\n"
        "    await start(self)\n"
        "    print(sorted({'typer', 'rich', 'confluent_kafka', 'click', 'argparse'}"
        " & sys.modules.keys()))\n"
        "    import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n"
        "app.Broker.start = started\n"
        "from headrace.cli.main import main\n"
        "main(['serve', '--listen', '127.0.0.1:0'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "[]"


def ended(process) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out.decode(), err.decode()


def test_a_daemon_is_started_found_and_stopped(start, tmp_path):
    (tmp_path / "server.properties").write_text(
        f"log.dirs={tmp_path / 'logs'}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
    )
    status, out, err = ended(start("kafka-server-start.sh", "-daemon", "server.properties"))
    match = re.search(r"listening on (\S+), data in (\S+), process (\d+), log in (\S+)", out)
    assert status == 0 and match is not None, err
    address, directory, process, log = match.groups()
    try:
        assert Path(directory) == tmp_path / "logs"
        assert Path(log).exists() and is_served(address)
        status, _, err = ended(start("serve", "server.properties", "-daemon"))
        assert (
            status == 1
            and f"A broker (pid {process}) is already running in {tmp_path / 'logs'}. Stop it"
            in err
        )
    finally:
        status, out, err = ended(start("stop", "server.properties"))
    assert (status, out) == (0, f"Stopped process {process}\n"), err
    host, _, port = address.rpartition(":")
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), 1)
    status, _, err = ended(start("stop", "--data", str(tmp_path / "logs")))
    assert status == 1 and "no running broker found (looked in" in err


def test_stop_without_arguments_stops_the_only_daemon_but_not_one_of_several(start, tmp_path):
    def serve(name: str) -> None:
        arguments = ("serve", "-daemon", "--data", name, "--listen", "127.0.0.1:0")
        status, _, err = ended(start(*arguments))
        assert status == 0, err

    serve("one")
    serve("two")
    try:
        status, _, err = ended(start("stop"))
        assert status == 2 and "2 brokers" in err and str(tmp_path / "two") in err
    finally:
        assert ended(start("stop", "--data", "two"))[0] == 0
        assert ended(start("stop"))[0] == 0
    status, _, err = ended(start("stop"))
    assert status == 1 and "no running broker found (looked in" in err
    assert list((tmp_path / f"headrace-{os.getuid()}").iterdir()) == []


def test_kafka_server_stop_stops_every_daemon(start, tmp_path):
    for name in "ab":
        (tmp_path / f"server-{name}.properties").write_text(
            f"log.dirs={tmp_path / name}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        )
        ended(start("kafka-server-start.sh", "-daemon", f"server-{name}.properties"))
    status, out, err = ended(start("kafka-server-stop.sh"))
    assert status == 0 and out.count("Stopped process") == 2, err
    status, _, err = ended(start("kafka-server-stop.sh"))
    assert status == 1 and "no running broker found" in err
    status, _, err = ended(start("stop", "--all", "--data", "a"))
    assert status == 2 and "--all stops every broker" in err


def test_a_daemon_that_cannot_start_says_why_on_the_terminal(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, out, err = ended(start("serve", "-daemon", "--listen", address))
    assert (status, out) == (1, "")
    [line] = err.splitlines()
    assert address in line and "headrace.log" in line


@pytest.mark.parametrize("arguments", [(), ("-daemon",)])
def test_an_impossible_data_directory_is_named_without_a_traceback(start, tmp_path, arguments):
    (tmp_path / "file").touch()
    status, out, err = ended(start("serve", *arguments, "--listen", "0", "--data", "file/below"))
    assert (status, out) == (1, "")
    last = err.splitlines()[-1]
    assert (
        f"Cannot use data directory {tmp_path / 'file' / 'below'}: it is not a directory. Choose"
        in last
    )
    assert "Traceback" not in err


def test_a_ready_file_that_cannot_be_written_ends_the_broker_cleanly(start, tmp_path):
    status, out, err = ended(start("serve", "--listen", "0", "--ready-file", "nowhere/ready"))
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith("headrace: --ready-file nowhere/ready: No such file")
    assert (tmp_path / "headrace-data" / ".kafka_cleanshutdown").exists()


def test_a_daemon_warns_on_the_terminal(start, tmp_path):
    arguments = ("serve", "-daemon", "--listen", ":0", "-X", "no.such.setting=1")
    status, _, err = ended(start(*arguments))
    try:
        assert status == 0
        unknown, exposed = err.splitlines()
        assert unknown.startswith("warning: no.such.setting")
        assert exposed.startswith("warning: listener PLAINTEXT://:0 is open on every network")
    finally:
        assert ended(start("stop"))[0] == 0


def test_a_directory_or_port_in_use_is_refused_in_one_line(start, tmp_path):
    ready = tmp_path / "ready"
    first = start("serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready))
    address = wait_for(ready, first)
    for arguments, reason in (
        (("--listen", "127.0.0.1:0"), "in use by another broker"),
        (
            ("--listen", address, "--data", "other"),
            f"Cannot listen on {address} (listener PLAINTEXT): the address is in use. Stop",
        ),
    ):
        second = start("serve", *arguments)
        out, err = second.communicate(timeout=LIMIT_S)
        assert (second.returncode, out) == (1, b"")
        assert [line for line in err.decode().splitlines() if reason in line]
        assert b"Traceback" not in err
    assert (tmp_path / "headrace-data" / "headrace.pid").read_text() == f"{first.pid}\n"


def test_a_listener_whose_host_does_not_resolve_is_named(start):
    status, _, err = ended(start("serve", "--listen", "no-such-host.invalid:9092"))
    assert status == 1 and "no-such-host.invalid:9092" in err


def test_the_demo_on_a_port_in_use_fails_in_one_line(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _, err = ended(start("demo", "--listen", address))
    assert status == 1 and address in err
    assert len(err.splitlines()) == 1 and "Errno" not in err


def test_sighup_stops_serve_cleanly_unless_under_nohup(start, tmp_path):
    ready = tmp_path / "ready"
    process = start("serve", "--listen", "0", "--ready-file", str(ready))
    wait_for(ready, process)
    process.send_signal(signal.SIGHUP)
    assert ended(process)[0] == 0
    assert (tmp_path / "headrace-data" / ".kafka_cleanshutdown").exists()

    ready.unlink()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; a child inherits it
    try:
        process = start("serve", "--listen", "0", "--ready-file", str(ready))
    finally:
        signal.signal(signal.SIGHUP, before)
    address = wait_for(ready, process)
    process.send_signal(signal.SIGHUP)
    assert is_served(address)


def test_serve_runs_with_a_closed_stdout(start, tmp_path):
    process = start("serve", "--listen", "0", "--ready-file", "ready")
    process.stdout.close()
    process.stdout = None
    assert is_served(wait_for(tmp_path / "ready", process))
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert (tmp_path / "headrace-data" / ".kafka_cleanshutdown").exists()


def test_a_second_signal_stops_serve_immediately(environment, tmp_path):
    program = (
        "import asyncio, os, signal, headrace.broker.broker as app\n"
        "async def never(self): await asyncio.Event().wait()\n"
        "app.Broker.stop = never\n"
        "start = app.Broker.start\n"
        "async def started(self):\n"
        "    await start(self)\n"
        "    for delay in (0, 0.05):\n"
        "        asyncio.get_running_loop().call_later(\n"
        "            delay, os.kill, os.getpid(), signal.SIGTERM)\n"
        "app.Broker.start = started\n"
        "from headrace.cli.main import main\n"
        "main(['serve', '--listen', '127.0.0.1:0'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 128 + signal.SIGTERM


def test_a_wrong_setting_is_refused_by_name_with_status_2(start):
    process = start("serve", "-X", "log.retention.ms=soon")
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (2, b"")
    assert err.decode().startswith("headrace: ") and "log.retention.ms" in err.decode()
    assert err.count(b"\n") == 1


def test_the_demo_shows_a_client_write_and_read_and_ends(start, tmp_path):
    process = start("demo", "--data", str(tmp_path / "kept"), env=NO_JAVA)
    out, err = process.communicate(timeout=LIMIT_S)
    text = out.decode()
    assert (process.returncode, err.decode()) == (0, "")
    assert re.search(r"listens on 127\.0\.0\.1:\d+", text)
    assert str(tmp_path / "kept") in text
    assert text.count("good morning") == 2
    assert (tmp_path / "kept" / "greetings-0").is_dir()


@pytest.mark.parametrize(
    ("environment_of_java", "what"),
    [(NO_JAVA, "Java is not installed"), ({"JAVA_HOME": "/nowhere"}, "Java cannot be started")],
)
def test_the_demo_without_java_skips_the_spark_job_and_says_why(
    start, tmp_path, environment_of_java, what
):
    process = start("demo", "--data", str(tmp_path / "kept"), env=environment_of_java)
    out, err = process.communicate(timeout=LIMIT_S)
    text = out.decode()
    assert (process.returncode, err.decode()) == (0, "")
    assert what in text
    assert "Java 17 or newer" in text and "JAVA_HOME" in text and "install" in text
    assert text.count("good morning") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_keeps_serving_on_request_and_leaves_no_files(start, tmp_path, number):
    process = start(
        "demo", "--keep-serving", "--listen", "127.0.0.1:0",
        env={"TMPDIR": str(tmp_path), **NO_JAVA},
    )  # fmt: skip
    text = ""
    while "Ctrl-C" not in text:
        line = process.stdout.readline().decode()
        assert line, process.stderr.read().decode()
        text += line
    address = re.search(r"listens on (\S+),", text)
    assert address is not None and is_served(address[1])
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []
