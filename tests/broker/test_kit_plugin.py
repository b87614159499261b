"""The pytest plugin, in separate test sessions: the scope of each fixture, and its settings."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LIMIT_S = 120


@pytest.fixture
def session(tmp_path):
    """Run pytest on one test file, without the settings of this repository."""

    def run(text, *arguments, ini=""):
        (tmp_path / "test_it.py").write_text(text)
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_one_broker_serves_the_session_and_fresh_ones_serve_one_test(session):
    text = """
addresses = {"session": set(), "fresh": set(), "topic": set()}

def use(headrace_broker, headrace_topic, headrace_fresh_broker):
    addresses["session"].add(headrace_broker.bootstrap_servers)
    addresses["fresh"].add(str(headrace_fresh_broker.data))
    addresses["topic"].add(headrace_topic)
    headrace_broker.produce(headrace_topic, ["a"])
    assert len(headrace_broker.records(headrace_topic)) == 1

def test_first(headrace_broker, headrace_topic, headrace_fresh_broker):
    use(headrace_broker, headrace_topic, headrace_fresh_broker)

def test_second(headrace_broker, headrace_topic, headrace_fresh_broker):
    use(headrace_broker, headrace_topic, headrace_fresh_broker)
    assert {name: len(found) for name, found in addresses.items()} == {
        "session": 1, "fresh": 2, "topic": 2
    }
"""
    status, printed = session(text)
    assert status == 0, printed


PARTITIONS = """
import pytest

@pytest.mark.parametrize("fixture", ["headrace_broker", "headrace_fresh_broker"])
def test_settings(fixture, request):
    broker = request.getfixturevalue(fixture)
    broker.produce("orders", ["a"])  # creates the topic with num.partitions
    assert len(list(broker.data.glob("orders-*"))) == EXPECTED
"""


def test_fixtures_take_settings_from_the_ini_file_and_the_command_line(session):
    ini = "headrace_config =\n    num.partitions = 3\n    log.retention.ms=-1\n"
    status, printed = session(PARTITIONS.replace("EXPECTED", "3"), ini=ini)
    assert status == 0, printed
    option = "--headrace-config=num.partitions=5"
    status, printed = session(PARTITIONS.replace("EXPECTED", "5"), option, ini=ini)
    assert status == 0, printed


@pytest.mark.parametrize(
    "option, message",
    [
        ("num.partitions", "--headrace-config: expected NAME=VALUE; got 'num.partitions'"),
        ("no.such.setting=5", "no.such.setting"),
    ],
)
def test_a_wrong_setting_is_an_error_of_the_test(session, option, message):
    status, printed = session(PARTITIONS, "--headrace-config", option)
    assert status != 0
    assert message in printed


def test_a_cluster_serves_one_test(session):
    text = """
data = set()

def use(cluster):
    cluster.produce("orders", ["a"])
    assert len(cluster.records("orders")) == 1
    data.update(broker.data for broker in cluster.brokers)

def test_first(headrace_cluster):
    use(headrace_cluster)

def test_second(headrace_cluster):
    use(headrace_cluster)
    assert len(data) == 6
"""
    status, printed = session(text)
    assert status == 0, printed


ASYNC = """
import pytest
from aiokafka import AIOKafkaProducer

@pytest.mark.MARK
async def test_it(headrace_async_broker):
    async with AIOKafkaProducer(
        bootstrap_servers=headrace_async_broker.bootstrap_servers
    ) as producer:
        sent = await producer.send_and_wait("orders", b"a")
    assert sent.offset == 0
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_async_broker_works_with_pytest_asyncio(session, mode):
    pytest.importorskip("pytest_asyncio")
    status, printed = session(ASYNC.replace("MARK", "asyncio"), ini=f"asyncio_mode = {mode}\n")
    assert status == 0, printed


def test_a_session_without_a_broker_does_not_load_one(session):
    text = """
import sys

def test_it():
    assert "headrace.testing.plugin" in sys.modules
    assert "headrace.broker.broker" not in sys.modules
    assert "confluent_kafka" not in sys.modules
"""
    status, printed = session(text)
    assert status == 0, printed


def test_the_log_of_the_broker_is_shown_under_a_failed_test(session):
    text = """
def test_it(headrace_fresh_broker):
    headrace_fresh_broker.create_topics(["orders"])
    headrace_fresh_broker.restart()
    assert False
"""
    status, printed = session(text, "--log-level=INFO")
    assert status == 1
    assert "Captured log call" in printed and "Stopped cleanly" in printed
