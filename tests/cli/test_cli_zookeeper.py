"""``headrace zookeeper`` and Kafka's ZooKeeper scripts, each in its own process."""

import signal

import pytest

from headrace.cli.output import CommandFailed
from headrace.cli.zookeeper_shell import run_shell
from headrace.launch.zookeeper import free_port, mode_of

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")

LIMIT_S = 60


@pytest.fixture
def run(start):
    """Run a command to its end and return its output."""

    def run(*arguments: str, status: int = 0, **options) -> str:
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == status, (out, err)
        return (out + err).decode()

    return run


# --- the shell


def test_the_shell_does_what_zookeeper_shell_does(headrace, zookeeper):
    at = zookeeper.connect
    value = '{"version":1,"config":{"retention.ms":"1"}}'
    assert headrace("zookeeper", "shell", at, "create", "/config", "").out == "Created /config\n"
    headrace("zookeeper", "shell", at, "create", "/config/topics")
    headrace("zookeeper", "shell", at, "create", "/config/topics/my-topic", value)
    got = headrace("zookeeper-shell.sh", at, "get", "/config/topics/my-topic")
    assert got.out == f"{value}\n"
    assert headrace("zookeeper-shell.sh", f"{at}/config", "ls", "/topics").out == "[my-topic]\n"
    headrace("zookeeper", "shell", at, "set", "/config/topics/my-topic", "new", "0")
    stat = headrace("zkCli.sh", "-server", at, "stat", "/config/topics/my-topic").lines
    assert "dataVersion = 1" in stat and "dataLength = 3" in stat and "numChildren = 0" in stat
    both = headrace("zookeeper", "shell", at, "get", "-s", "/config/topics/my-topic").lines
    assert both == ["new", *stat]
    made = headrace("zookeeper", "shell", at, "create", "-s", "/config/n_", "1").out
    assert made == "Created /config/n_0000000001\n"
    headrace("zookeeper", "shell", at, "delete", "/config/n_0000000001")
    headrace("zookeeper", "shell", at, "deleteall", "/config")
    gone = headrace("zookeeper", "shell", at, "get", "/config", status=1)
    assert gone.err == "headrace: get /config: NoNode\n"


def test_the_shell_reads_commands_from_stdin(headrace, zookeeper):
    lines = b"create /in 'two words'\nget /in\n\nset /in x 7\nget 'open\ndelete /in\nquit\nls /\n"
    ran = headrace("zookeeper", "shell", zookeeper.connect, stdin=lines, status=1)
    assert ran.lines == ["Created /in", "two words"]
    assert "set /in: BadVersion" in ran.err and "No closing quotation" in ran.err


@pytest.mark.parametrize("words", ["dance /", "get", "set /a", "delete / x"])
def test_a_wrong_command_of_the_shell_is_explained(headrace, zookeeper, words):
    assert headrace("zookeeper", "shell", zookeeper.connect, *words.split(), status=2).err


def test_the_shell_names_a_zookeeper_that_does_not_answer():
    with pytest.raises(CommandFailed, match="no answer from ZooKeeper at 127.0.0.1") as refused:
        run_shell(f"127.0.0.1:{free_port()}", ["ls", "/"], timeout_s=0.2)
    assert refused.value.status == 1


# --- running


def test_zookeeper_serves_until_a_signal_and_starts_again(start, run, zookeeper, tmp_path):
    for options in (["--port", "0"], []):
        server = start("zookeeper", *options)
        line = server.stdout.readline().decode()
        assert line.startswith("ZooKeeper serving on 127.0.0.1:") and "as standalone" in line
        address = line.split()[3]
        assert run("zookeeper", "status", address) == "Mode: standalone\n"
        assert run("zookeeper", "status") == "Mode: standalone\n"
        assert "already runs in" in run("zookeeper", status=1)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=LIMIT_S)
        assert (server.returncode, out, err) == (0, b"", b"")
        assert run("zookeeper", "status", status=1) == f"No ZooKeeper serves at {address}\n"
    assert "no running ZooKeeper" in run("zookeeper", "stop", status=1)


def test_zookeeper_ends_with_the_command_that_runs_it(start, zookeeper, tmp_path):
    server = start("zookeeper", "--port", "0", "--ready-file", str(tmp_path / "ready"))
    assert server.stdout.readline()
    host, _, port = (tmp_path / "ready").read_text().strip().rpartition(":")
    assert mode_of(host, int(port)) == "standalone"
    server.kill()
    server.wait()
    while mode_of(host, int(port)) is not None:  # the time limit of a test ends this
        pass


def test_a_failed_start_says_why(run, zookeeper, tmp_path):
    refused = run("zookeeper", "--port", str(zookeeper.port), status=1)
    assert f"Cannot listen on {zookeeper.connect}: Address already in use" in refused
    refused = run("zookeeper", "--data", "d", "--port", str(zookeeper.port), "-daemon", status=1)
    assert f"Cannot listen on {zookeeper.connect}" in refused


def test_without_java_one_line_says_what_to_install(run, tmp_path):
    nowhere = {"PATH": "/nowhere", "JAVA_HOME": ""}
    refused = run("zookeeper", status=1, env=nowhere)
    assert "Java 17 or newer" in refused and refused.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("missing.cfg", "missing.cfg: no such file"),
        ("a.cfg b.cfg", "expected one configuration file"),
        ("zoo.cfg --port 1", "--port cannot be combined"),
        ("--port x", "--port x: expected a number"),
        ("--servers a:1:2,b:1:2", "--servers and --id go together"),
        ("--servers a:1:2,b:1:2 --id 3", "--servers and --id go together"),
        ("--servers a --id 1", "HOST:PEER_PORT:ELECTION_PORT"),
        ("status missing.cfg", "missing.cfg: no such file"),
        ("--what", "unknown option --what"),
    ],
)
def test_wrong_usage_is_refused(headrace, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in headrace("zookeeper", *words.split(), status=2).err


def test_help_lists_the_verbs(headrace):
    shown = headrace("zookeeper", "--help").out
    assert "headrace zookeeper shell" in shown
    assert headrace("zookeeper", "shell").out == headrace("zookeeper", "stop", "-h").out == shown


# --- scripts


def test_kafkas_scripts_start_and_stop_a_zookeeper(run, zookeeper, tmp_path):
    config = tmp_path / "zookeeper.properties"
    config.write_text(
        f"dataDir={tmp_path}/zk\nclientPort={free_port()}\nclientPortAddress=127.0.0.1\n"
        "maxClientCnxns=0\nadmin.enableServer=false\n"
    )
    started = run("zookeeper-server-start.sh", "-daemon", str(config))
    assert "as standalone" in started
    assert run("zookeeper", "status", str(config)) == "Mode: standalone\n"
    assert run("zookeeper-server-stop.sh").startswith("Stopped process")


@pytest.mark.slow
def test_an_ensemble_starts_from_zoo_cfg_and_myid(run, start, zookeeper, tmp_path):
    ports = [free_port() for _ in range(9)]
    members = "".join(f"server.{n}=127.0.0.1:{ports[n]}:{ports[n + 3]}\n" for n in range(1, 4))
    clients = [free_port() for _ in range(3)]
    for number, port in enumerate(clients, 1):
        data = tmp_path / f"zk{number}"
        (data / "conf").mkdir(parents=True)
        (data / "myid").write_text(f"{number}\n")
        (data / "conf" / "zoo.cfg").write_text(
            f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime=500\ninitLimit=20\nsyncLimit=10\n{members}"
        )
    configs = [str(tmp_path / f"zk{number}" / "conf") for number in (1, 2, 3)]
    started: list[str] = []
    try:
        for config in configs:
            run("zkServer.sh", "--config", config, "start")
            started.append(config)
        while not all(mode_of("127.0.0.1", port) for port in clients):
            pass  # the time limit of a test ends this
        modes = [run("zkServer.sh", "--config", config, "status") for config in configs]
        assert sorted(modes) == ["Mode: follower\n", "Mode: follower\n", "Mode: leader\n"]
        addresses = ",".join(f"127.0.0.1:{port}" for port in clients)
        assert run("zookeeper", "status", addresses).count("Mode: follower") == 2
        run("zookeeper", "shell", addresses, "create", "/a", "1")
        leader = modes.index("Mode: leader\n")
        run("zkServer.sh", "--config", started.pop(leader), "stop")
        assert "1" in run("zookeeper", "shell", addresses, "get", "/a")
    finally:
        for config in started:
            run("zkServer.sh", "--config", config, "stop")
