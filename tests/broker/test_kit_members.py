"""A broker of a cluster, on a thread and in a child process: the same life and the same faults."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

from headrace.model.errors import ConfigError, ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing.member_process import ProcessMember
from headrace.testing.members import ThreadMember
from headrace.testing.runners import BrokerFailed
from headrace.wire.api import ApiKey
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

TOPIC = "orders"
DELAY_S = 0.2


def settings_of(data):
    return {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data)}


def a_batch():
    return bytearray(build_batch([Record(0, 1_700_000_000_000, b"key", b"value", ())]))


def make(kind, data, **settings):
    settings = settings_of(data) | settings
    if kind == "thread":
        return ThreadMember(settings, {})
    return ProcessMember(settings, {}, data)


@pytest.fixture(params=["thread", "process"])
def kind(request):
    return request.param


@pytest.fixture
def member(kind, tmp_path):
    member = make(kind, tmp_path / "data")
    member.begin()
    member.wait_started()
    yield member
    member.kill()


@pytest.fixture
def client(member):
    with RawClient(f"{member.host}:{member.port}") as client:
        client.create_topic(TOPIC)
        yield client


def produce(client):
    return client.produce(TOPIC, a_batch()).error_code


def test_a_stopped_member_leaves_a_clean_shutdown_marker(kind, tmp_path):
    member = make(kind, tmp_path / "data")
    member.begin()
    member.wait_started()
    member.stop()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_killed_member_does_not(kind, tmp_path):
    member = make(kind, tmp_path / "data")
    member.begin()
    member.wait_started()
    member.kill()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_start_that_fails_says_why(kind, tmp_path):
    with pytest.raises((BrokerFailed, ConfigError), match=r"no\.such\.setting"):
        failing = make(kind, tmp_path / "data", **{"no.such.setting": "1"})
        failing.begin()
        failing.wait_started()


def test_a_paused_member_answers_after_it_resumed(member, client):
    assert produce(client) == ErrorCode.NONE
    member.pause()
    client.produce(TOPIC, a_batch(), answer=False)
    client.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.sock.recv(1)
    client.sock.setblocking(True)
    member.fail(ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE, 1)  # takes effect later
    member.resume()
    produced = client.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
    assert produced.base_offset == 1
    member.delay(ApiKey.PRODUCE, 0)
    assert client.metadata(TOPIC).topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_errors_and_delays_are_injected(member, client):
    member.fail(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
    assert produce(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    member.delay(ApiKey.PRODUCE, DELAY_S)
    begun_at = time.monotonic()
    assert produce(client) == ErrorCode.NONE
    assert time.monotonic() - begun_at >= DELAY_S


def test_a_full_disk_refuses_records_until_it_is_freed(member, client):
    assert produce(client) == ErrorCode.NONE
    member.fill_disk()
    assert produce(client) != ErrorCode.NONE
    member.free_disk()
    assert produce(client) == ErrorCode.NONE


def test_a_child_that_died_is_reported_with_the_end_of_its_log(tmp_path):
    member = make("process", tmp_path / "data")
    member.begin()
    member.wait_started()
    os.kill(member.process_id, 9)
    with pytest.raises(BrokerFailed, match="exited with status -9"):
        member.stop()


def test_a_child_ends_with_its_parent(tmp_path):
    program = f"""
    import os
    from pathlib import Path
    from headrace.testing.member_process import ProcessMember

    member = ProcessMember({settings_of(tmp_path / "data")}, {{}}, Path({str(tmp_path / "data")!r}))
    member.begin()
    member.wait_started()
    print(member.process_id, flush=True)
    os.kill(os.getpid(), 9)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    process_id = int(done.stdout)

    def is_gone():
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return True
        # Without a parent to wait for it, it may remain as a zombie.
        with open(f"/proc/{process_id}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"

    wait_until(is_gone)
