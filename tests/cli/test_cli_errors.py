"""The errors of a missing broker, and of a server that is not a broker."""

import socket
import threading

import pytest

from headrace.cli import client
from headrace.testing import Broker


@pytest.fixture
def impatient(monkeypatch):
    """A command that asks for metadata gives up after two seconds instead of eight."""
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 2.0)


def test_an_unreachable_broker_is_a_one_line_error_with_advice(headrace):
    for arguments in (
        ("topics", "list"),
        ("configs", "get", "topic", "t"),
        ("produce", "t"),
        ("consume", "t"),
        ("perf", "latency", "t"),
    ):
        ran = headrace(*arguments, "-b", "127.0.0.1:1", status=1)
        assert ran.out == ""
        [line] = ran.err.splitlines()
        assert line.startswith("headrace: cannot reach a broker (127.0.0.1:1: Connection refused)")
        assert "headrace serve" in line and "-b HOST:PORT" in line


def test_a_host_name_that_does_not_resolve_is_named(headrace):
    [line] = headrace(
        "topics", "list", "-b", "no-such-host.invalid:9092", status=1
    ).err.splitlines()
    assert "no-such-host.invalid:9092" in line


def test_a_wrong_choice_is_named_with_the_valid_ones(headrace):
    err = headrace("configs", "get", "kind", "x", status=2).err
    assert "Invalid value for 'KIND': 'kind' is not one of 'topic', 'broker'" in err


def test_a_value_that_is_not_a_number_has_a_plain_error(headrace, topic):
    err = headrace("topics", "create", topic, "-p", "many", status=2).err
    assert err.splitlines()[-1].endswith("'--partitions': it should be a valid integer")


def test_a_misspelled_command_gets_a_suggestion(headrace):
    assert "Did you mean 'list'?" in headrace("topics", "lst", status=2).err


def test_help_is_a_command_too(headrace):
    assert headrace("help").out == headrace("--help").out
    assert headrace("help", "topics", "list").out == headrace("topics", "list", "--help").out


def test_the_broker_is_reached_before_a_client_is_created(headrace):
    # A client that cannot connect would delay Ctrl-C.
    ran = headrace("topics", "list", "-b", "127.0.0.1:1", "-X", "no.such=1", status=1)
    assert "cannot reach a broker" in ran.err


@pytest.fixture(scope="module")
def elsewhere():
    """A broker whose advertised address does not resolve."""
    nowhere = "PLAINTEXT://no-such-host.invalid:9092"
    with Broker(config={"advertised.listeners": nowhere}) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "list"),
        ("produce", "t", "-X", "message.timeout.ms=500"),
    ],
)
def test_an_advertised_address_that_does_not_resolve_is_named(headrace, elsewhere, arguments):
    ran = headrace(*arguments, "-b", elsewhere, stdin=b"x\n", status=1)
    assert ran.out == ""
    assert "no-such-host.invalid:9092" in ran.err


@pytest.mark.parametrize("address", ["9092:", "host:port", ":9092"])
def test_an_invalid_address_is_wrong_usage(headrace, address):
    assert "HOST:PORT" in headrace("topics", "list", "-b", address, status=2).err


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_server_that_never_answers_is_given_up_in_time(headrace):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ran = headrace("topics", "list", "-b", address, status=1)
    [line] = ran.err.splitlines()
    assert "no answer" in line and "within 2 s" in line and address in line


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_server_that_speaks_http_is_given_up_in_time(headrace):
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def answer() -> None:
            server.settimeout(0.1)
            while not over.is_set():
                try:
                    link, _ = server.accept()
                except TimeoutError:
                    continue
                with link:
                    link.settimeout(5)
                    link.recv(1000)
                    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            ran = headrace("topics", "list", "-b", f"127.0.0.1:{server.getsockname()[1]}", status=1)
        finally:
            over.set()
            thread.join()
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "settings",
    [
        ("security.protocol=SSL",),
        (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            "sasl.username=ann",
            "sasl.password=secret",
        ),
    ],
    ids=["tls", "sasl"],
)
@pytest.mark.usefixtures("impatient")
def test_a_broker_without_the_requested_security_is_not_called_unreachable(headrace, settings):
    options = [word for setting in settings for word in ("-X", setting)]
    error = headrace("topics", "list", *options, status=1).err
    assert "security.protocol" in error
    assert "headrace serve" not in error and "secret" not in error


def test_without_arguments_the_help_is_printed(headrace):
    for arguments in ((), ("--help",), ("-h",)):
        assert "headrace serve" in headrace(*arguments).out
    assert headrace("--version").out.startswith("headrace ")


def test_a_client_settings_file_is_read(headrace, tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("client.id=mine\nno.such.setting=1\n")
    assert (
        "no.such.setting" in headrace("topics", "list", "--client-config", str(path), status=2).err
    )
    assert (
        "absent"
        in headrace("topics", "list", "--client-config", str(tmp_path / "absent"), status=2).err
    )


def test_version_names_the_parts(headrace):
    assert set(headrace("version", "--format", "json").document) == {
        "headrace",
        "python",
        "librdkafka",
        "confluent-kafka",
    }
