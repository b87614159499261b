"""The programs in examples/ do what they say, each with its own broker."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.testing import Broker

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 60

pytestmark = pytest.mark.slow


@pytest.fixture
def broker():
    with Broker(topics={"orders": 3}) as broker:
        yield broker


def command(name, broker, *arguments):
    address = ["--bootstrap-servers", broker.bootstrap_servers]
    return [sys.executable, str(EXAMPLES / name), *address, *arguments]


def run(name, broker, *arguments):
    done = subprocess.run(
        command(name, broker, *arguments), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_producer_reports_every_record_and_the_consumer_prints_each(broker):
    reports = run("producer.py", broker, "orders")
    assert sorted(line.partition(" ->")[0] for line in reports) == [
        "alice",
        "alice",
        "bob",
        "carol",
    ]
    printed = run("consumer.py", broker, "--max", "4", "orders")
    assert sorted(printed) == [
        "alice wants: book",
        "alice wants: lamp",
        "bob wants: pens",
        "carol wants: ink",
    ]
    assert printed.index("alice wants: book") < printed.index("alice wants: lamp")


@pytest.fixture
def interruptible():
    """Let children receive SIGINT even if the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_consumer_continues_where_its_group_stopped_and_leaves_cleanly(broker, interruptible):
    run("producer.py", broker, "orders")
    assert len(run("consumer.py", broker, "--max", "4", "orders")) == 4
    run("producer.py", broker, "orders")
    with subprocess.Popen(
        command("consumer.py", broker, "orders"), stdout=subprocess.PIPE, text=True
    ) as consumer:
        give_up = threading.Timer(LIMIT_S, consumer.kill)
        give_up.start()
        printed = [consumer.stdout.readline() for _ in range(4)]  # only new orders
        consumer.send_signal(signal.SIGINT)
        rest, _ = consumer.communicate()
        give_up.cancel()
    assert consumer.returncode == 0
    assert len(set(printed)) == 4 and rest == ""


def test_the_producer_reports_records_that_could_not_be_sent(broker):
    failed = subprocess.run(
        command("producer.py", broker, "no/such/topic"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert failed.returncode == 1
    assert failed.stderr.count("not sent") == 4


def test_the_example_test_passes_without_a_running_broker():
    path = EXAMPLES / "test_with_a_broker.py"
    # Without this repository's own settings and fixtures, as in another project.
    passed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(EXAMPLES), "-c", "/dev/null",
         "-p", "no:cacheprovider", str(path)],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "3 passed" in passed.stdout


def test_the_sql_sink_writes_each_record_once(broker, tmp_path):
    run("producer.py", broker, "orders")
    file = str(tmp_path / "orders.db")
    assert run("sql_sink.py", broker, "orders", file) == ["4 records written"]
    run("producer.py", broker, "orders")
    assert run("sql_sink.py", broker, "orders", file) == ["4 records written"]
    assert run("sql_sink.py", broker, "orders", file) == ["0 records written"]


def test_every_example_is_named_on_its_page():
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.rglob("*.py"):
        assert path.name in page, f"examples/README.md does not name {path.name}"
