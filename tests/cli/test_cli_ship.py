"""``headrace ship`` with a running broker: options, rotation, stops and outages."""

import json
import os
import subprocess

import pytest

from headrace.testing import Broker
from tests.fakes.shipping import ShipperProcess, shipped
from tests.fakes.waiting import wait_until


@pytest.fixture
def logs(tmp_path):
    directory = tmp_path / "logs"
    directory.mkdir()
    return directory


@pytest.fixture
def ship(headrace, tmp_path):
    """Ship what is there, and exit."""

    def run(*arguments, **options):
        return headrace("ship", *arguments, "--once", "--state", str(tmp_path / "state"), **options)

    return run


def records(headrace, topic):
    lines = headrace("consume", topic, "--from-beginning", "-e", "--format", "json").lines
    return [json.loads(line) for line in lines]


def headers(record):
    return {header["name"]: header["value"] for header in record["headers"]}


def values(headrace, topic):
    return [record["value"] for record in records(headrace, topic)]


# --- what is sent


def test_lines_arrive_once_with_headers_that_identify_them(headrace, ship, topic, logs):
    file = logs / "app.log"
    file.write_text("one\ntwo\nhal")
    ran = ship(str(file), "-t", topic, "--host", "web-1", "--format", "json")
    assert ran.document == {"events": 2, "bytes": 8}
    file.write_text("one\ntwo\nhalf\n")  # the same inode, as an editor that appends
    ship(str(file), "-t", topic, "--host", "web-1")
    found = records(headrace, topic)
    assert [record["value"] for record in found] == ["one", "two", "half"]
    names = [headers(record) for record in found]
    assert [name["offset"] for name in names] == ["0", "4", "8"]
    assert {(n["host"], n["file"]) for n in names} == {("web-1", str(file))}
    assert len({name["generation"] for name in names}) == 1
    assert found[0]["key"] == f"web-1:{file}"


def test_events_of_several_lines_and_topics_by_rule(headrace, ship, topic, logs):
    (logs / "a.log").write_text("01 ok\n02 ERROR\n at x\n at y\n03 ok\n")
    (logs / "b.log").write_text("04 b\n")
    options = ["--event-start", r"\d\d ", "--rule", f"{topic}-errors=ERROR", "--key", "none"]
    ship(str(logs / "*.log"), "-t", topic, *options, "--file-rule", f"{topic}-b=*/b.log")
    assert values(headrace, topic) == ["01 ok", "03 ok"]
    assert values(headrace, f"{topic}-errors") == ["02 ERROR\n at x\n at y"]
    assert values(headrace, f"{topic}-b") == ["04 b"]


def test_lines_of_a_web_server_become_json(headrace, ship, topic, logs):
    line = '10.0.0.1 - - [17/Nov/2026:15:45:06 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"'
    (logs / "access.log").write_text(f"{line}\nother\n")
    ship(str(logs / "access.log"), "-t", topic, "--parse", "nginx")
    first, second = records(headrace, topic)
    assert json.loads(first["value"])["status"] == 200 and "unparsed" not in headers(first)
    assert second["value"] == "other" and headers(second)["unparsed"] == "nginx"


def test_long_lines_are_cut_and_marked(headrace, ship, topic, logs):
    (logs / "a.log").write_text("0123456789abc\nx\n")
    ship(str(logs / "a.log"), "-t", topic, "--max-event", "10")
    found = [(record["value"], headers(record).get("part")) for record in records(headrace, topic)]
    assert found == [("0123456789", "first"), ("abc", "last"), ("x", None)]


def test_stdin_is_shipped_to_its_end(headrace, topic, environment):
    subprocess.run(
        [*command(), "ship", "-", "-t", topic], input=b"one\ntwo", env=environment, check=True
    )
    assert values(headrace, topic) == ["one", "two"]


def command():
    import sys

    return [sys.executable, "-m", "headrace"]


def test_a_shipper_may_start_at_the_end(headrace, ship, topic, logs):
    file = logs / "a.log"
    file.write_text("old\n")
    ship(str(file), "-t", topic, "--from-end")
    with file.open("a") as log:
        log.write("new\n")
    ship(str(file), "-t", topic, "--from-end")
    assert values(headrace, topic) == ["new"]


# --- what is said


def test_status_shows_positions_and_totals(headrace, ship, topic, logs, tmp_path):
    (logs / "a.log").write_text("one\npart")
    ship(str(logs / "a.log"), "-t", topic)
    shown = headrace("ship", "status", "--state", str(tmp_path / "state"))
    assert "a.log" in shown.out and "not running; 1 event shipped, 0 bytes lost" in shown.err
    document = headrace(
        "ship", "status", "--state", str(tmp_path / "state"), "--format", "json"
    ).document
    (file,) = document["files"]
    assert (file["acknowledged"], file["lag"], document["pid"]) == (4, 4, None)
    assert document["totals"]["events"] == 1


def test_compressed_and_unreadable_files_are_reported(ship, topic, logs):
    (logs / "a.log.gz").write_bytes(b"\x1f\x8b\x08")
    ran = ship(str(logs / "a.log*"), "-t", topic)
    assert "a.log.gz: skipped, because it is compressed" in ran.err
    if os.geteuid():
        (logs / "a.log").write_text("x\n")
        (logs / "a.log").chmod(0)
        assert "a.log: cannot read it: Permission denied" in ship(str(logs / "a*"), "-t", topic).err


def test_wrong_usage_is_explained(headrace, ship, topic, tmp_path):
    assert "Missing option --topic" in headrace("ship", "x", status=2).err
    assert "no such file" in ship(str(tmp_path / "none"), "-t", topic, status=1).err
    assert "expected TOPIC=PATTERN" in ship("x", "-t", topic, "--rule", "x", status=2).err
    wrong = ship("x", "-t", topic, "--event-start", "(", status=2)
    assert "invalid regular expression" in wrong.err
    assert "--close-after" in ship("x", "-t", topic, "--close-after", "soon", status=2).err
    assert "cannot be combined" in ship("-", "x", "-t", topic, status=2).err


def test_a_refused_record_fails_the_command_and_is_sent_again(headrace, ship, topic, logs):
    headrace("topics", "create", topic, "-c", "max.message.bytes=1000")
    (logs / "a.log").write_text("short\n" + "x" * 2000 + "\n")
    refused = ship(str(logs / "a.log"), "-t", topic, "-X", "batch.num.messages=1", status=1)
    assert "MESSAGE_TOO_LARGE" in refused.err and "--max-event" in refused.err
    options = ["--max-event", "300", "-X", "batch.num.messages=1"]
    ship(str(logs / "a.log"), "-t", topic, *options)
    assert "x" * 300 in values(headrace, topic)


# --- as a service


@pytest.fixture
def service(broker, topic, logs, tmp_path):
    with ShipperProcess(
        broker.bootstrap_servers, tmp_path, logs / "app.log", topic, "--close-after", "1s"
    ) as running:
        yield running


@pytest.mark.slow
def test_a_deleted_file_is_finished_and_a_rotated_one_ends_without_a_line_end(
    broker, topic, logs, service
):
    path = logs / "app.log"
    with path.open("w") as log:
        log.write("one\n")
        log.flush()
        wait_until(lambda: service.has_shipped(path), 60)
        path.unlink()
        log.write("two\nthree")
        log.flush()
        wait_until(lambda: service.saved()["totals"].get("events") == 3, 60)
    path.write_text("four\n")
    wait_until(lambda: service.has_shipped(path), 60)
    assert service.stop() == 0
    assert list(shipped(broker.bootstrap_servers, topic).values()) == [
        b"one",
        b"two",
        b"three",
        b"four",
    ]
    assert service.saved()["totals"]["lost_bytes"] == 0


@pytest.mark.slow
def test_one_shipper_uses_a_state_directory_and_sigterm_saves(headrace, topic, logs, service):
    path = logs / "app.log"
    path.write_text("one\n")
    wait_until(lambda: service.has_shipped(path), 60)
    state = str(service.state)
    second = headrace("ship", str(path), "-t", topic, "--once", "--state", state, status=1)
    assert "another shipper (pid" in second.err and "--state" in second.err
    with path.open("a") as log:
        log.write("two\n" * 1000)
    assert service.stop() == 0
    again = headrace("ship", str(path), "-t", topic, "--once", "--state", state)
    assert "cannot" not in again.err
    assert values(headrace, topic) == ["one"] + ["two"] * 1000


@pytest.mark.slow
def test_a_shipper_waits_for_its_broker(tmp_path, logs):
    path = logs / "app.log"
    with (
        Broker(process=True, data=tmp_path / "data", topics=["logs"]) as broker,
        ShipperProcess(broker.bootstrap_servers, tmp_path, path, "logs") as service,
    ):
        path.write_text("before\n")
        wait_until(lambda: service.has_shipped(path), 60)
        broker.kill()
        with path.open("ab") as log:
            log.write(b"while it is away\n" * 150_000)  # more than the shipper holds in memory
        wait_until(lambda: service.saved()["generations"][0]["size"] > 1000, 60)
        path.rename(logs / "app.log.1")  # files are still found
        path.write_text("after\n")
        wait_until(lambda: len(service.saved()["generations"]) == 2, 60)
        assert service.position(logs / "app.log.1") == 7
        path.unlink()
        broker.start()
        wait_until(lambda: service.has_shipped(logs / "app.log.1"), 60)
        wait_until(lambda: service.saved()["totals"]["events"] == 150_002, 60)
        assert service.stop() == 0
        assert len(shipped(broker.bootstrap_servers, "logs")) == 150_002


# --- the audit


def test_the_audit_finds_what_was_shipped(headrace, ship, topic, logs, tmp_path, environment):
    file = logs / "app.log"
    file.write_text("".join(f"{'ERROR' if n % 3 == 0 else 'INFO'} {n}\n" for n in range(300)))
    errors = f"{topic}-errors"
    ship(str(file), "-t", topic, "--rule", f"{errors}=ERROR")
    ship_stdin = [*command(), "ship", "-", "-t", topic]
    subprocess.run(ship_stdin, input=b"from stdin\n", env=environment, check=True)
    audit = ["pipeline", "audit", topic, errors, "--warehouse", str(tmp_path / "warehouse")]

    found = headrace(*audit, "--format", "json").document
    assert {one["topic"]: (one["expected"], one["found"]) for one in found["totals"]} == {
        topic: (201, 201),
        errors: (100, 100),
    }
    headrace("produce", topic, stdin=b"counted by nobody\n")
    (uneven,) = headrace(*audit, "--format", "json", status=1).document["minutes"]
    assert (uneven["topic"], uneven["surplus"]) == (topic, 1)

    other = logs / "other.log"
    other.write_text("not counted\n")
    ship(str(other), "-t", topic, "--no-audit")
    totals = headrace(*audit, "--format", "json", status=1).document["totals"]
    assert [(one["expected"], one["surplus"]) for one in totals if one["topic"] == topic] == [
        (201, 2)
    ]
