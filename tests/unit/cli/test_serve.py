"""The options of ``serve``, its settings and its announcement."""

import errno
import logging
import socket
from pathlib import Path

import pytest

from headrace.cli import log_lines, serve
from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.model.errors import ConfigError


def settings(*arguments: str) -> dict[str, str]:
    options = serve.parsed_options(arguments)
    assert options is not None
    return serve.settings_of(options)


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "listeners=PLAINTEXT://:9092\nadvertised.listeners=PLAINTEXT://far:9092\n"
        "log.dirs=/var/kafka\nnum.partitions=3\n"
    )
    return path


def test_the_default_data_directory_is_in_the_current_one():
    assert settings() == {"log.dirs": str(Path("headrace-data").absolute())}


def test_the_settings_of_the_file_are_kept(properties):
    assert settings(str(properties)) == {
        "listeners": "PLAINTEXT://:9092",
        "advertised.listeners": "PLAINTEXT://far:9092",
        "log.dirs": "/var/kafka",
        "num.partitions": "3",
    }


def test_a_file_without_log_dirs_gets_kafkas_default(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\n")
    assert settings(str(path)) == {"num.partitions": "3"}


def test_an_option_overrides_the_file_and_x_overrides_both(properties):
    found = settings(
        str(properties), "--listen", "127.0.0.1:0", "--data", "/d", "-X", "num.partitions=5",
        "-X", "log.dirs=/e",
    )  # fmt: skip
    assert found == {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": "/e",
        "num.partitions": "5",
    }


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092"),
        (":9092", "PLAINTEXT://:9092"),
        ("9093", "PLAINTEXT://127.0.0.1:9093"),
        ("[::1]:0", "PLAINTEXT://[::1]:0"),
        ("::1:0", "PLAINTEXT://[::1]:0"),
    ],
)
def test_listen_accepts_addresses_and_ports(text, listener):
    assert serve.listener_of(text) == listener


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000", "SSL://host:1"])
def test_listen_refuses_other_texts(text):
    with pytest.raises(CommandFailed, match="--listen"):
        serve.listener_of(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["a.properties", "b.properties"],
        ["--listen"],
        ["--data", ""],
        ["-X", "novalue"],
        ["--log-format", "xml"],
        ["--log-level", "loud"],
        ["/does/not/exist.properties"],
        ["-X", "num.partitions=many"],
        ["--strict", "-X", "no.such.setting=1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_a_one_line_error(arguments):
    with pytest.raises(CommandFailed) as failed:
        serve.run(arguments)
    assert failed.value.status == WRONG_USAGE
    assert "\n" not in str(failed.value)


def test_an_empty_data_directory_is_refused_by_name():
    with pytest.raises(CommandFailed, match="--data: expected a directory, got ''"):
        serve.run(["--data="])


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (OSError(errno.EADDRINUSE, "Cannot listen on :1"), "Cannot listen on :1. Stop the process"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot listen"), "Cannot listen. Use an address of this"),
        (socket.gaierror(-2, "Cannot listen"), "Cannot listen. Check --listen or listeners"),
        (ConfigError("x is wrong"), "cannot start the broker: x is wrong"),
    ],
)
def test_a_failed_start_is_told_once_and_with_advice(failure, text):
    assert str(serve.start_failure(failure)).startswith(text)


def test_values_may_follow_an_equals_sign():
    options = serve.parsed_options(["--data=/d", "--log-level=debug", "-daemon"])
    assert options is not None
    assert (options.data, options.log_level, options.daemon) == (Path("/d"), "DEBUG", True)


@pytest.mark.parametrize("level", ["warn", "WARN", "WARNING"])
def test_a_log_level_has_kafkas_name_or_pythons(level):
    options = serve.parsed_options(["--log-level", level])
    assert options is not None
    assert log_lines.LEVELS[options.log_level] == logging.WARNING


@pytest.mark.parametrize(
    ("listen", "is_exposed"),
    [(":9092", True), ("0.0.0.0:9092", True), ("[::]:9092", True), ("9092", False)],
)
def test_an_open_listener_without_security_is_named(listen, is_exposed):
    config = serve.built_config(serve.parsed_options(["--listen", listen]))
    warnings = serve.exposure_warnings(config)
    assert [serve.listener_of(listen) in line for line in warnings] == [True] * is_exposed


def test_help_is_printed_and_ends_with_an_example(capsys):
    assert serve.run(["--help"]) == 0
    assert capsys.readouterr().out.rpartition("Example:")[2].count("headrace serve") == 3


def test_a_listener_on_every_interface_is_reachable_on_loopback():
    assert serve.connectable("0.0.0.0", 1) == "127.0.0.1:1"
    assert serve.connectable("::", 1) == "[::1]:1"
    assert serve.connectable("log.example", 1) == "log.example:1"


@pytest.mark.parametrize(
    ("listen", "everywhere"), [(":0", True), ("0.0.0.0:0", True), ("[::]:0", True), ("0", False)]
)
def test_the_announcement_tells_that_every_interface_is_open(listen, everywhere):
    options = serve.parsed_options(["--listen", listen])
    line = serve.announcement("127.0.0.1:9092", serve.built_config(options))
    assert ("every other address" in line) == everywhere


def test_the_announcement_has_absolute_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = serve.built_config(serve.parsed_options(["-X", "log.dirs=a,b"]))
    assert serve.announcement("host:1", config).endswith(f"data in {tmp_path}/a, {tmp_path}/b")


def test_a_ready_file_is_written_atomically(tmp_path):
    path = tmp_path / "ready"
    serve.write_atomically(path, "127.0.0.1:1\n")
    assert path.read_text() == "127.0.0.1:1\n"
    assert list(tmp_path.iterdir()) == [path]
