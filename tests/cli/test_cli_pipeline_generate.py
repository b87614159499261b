"""``headrace pipeline generate``: a day, live events, and wrong usage."""

import signal

import pytest
from confluent_kafka.admin import AdminClient

from headrace.testing import Broker
from tests.fakes.shipping import record_count
from tests.fakes.waiting import wait_until


def test_generate_a_day_and_live(headrace):
    small = ["--members", "100", "--events"]
    day = headrace(
        "pipeline", "generate", "--date", "2026-11-16", *small, "2000", "--format", "json"
    )
    assert day.document["sent"] == 2_000
    assert day.document["topics"]["page-views"]["unique"] > 600
    assert set(day.document["topics"]["posts"]) >= {"sent", "unique", "doubled", "late", "broken"}
    live = headrace("pipeline", "generate", "--rate", "5000", *small, "1000", "--no-broken")
    assert live.lines[0].split() == [
        "TOPIC", "SENT", "UNIQUE", "DOUBLED", "LATE", "TOO-LATE", "BROKEN", "OUT-OF-TIME"
    ]  # fmt: skip
    assert live.lines[-1].startswith("all topics") and "events in" in live.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--date", "2026-11-16", "--rate", "5"], "give --date or --rate, not both"),
        (["--date", "today"], "--date 'today': expected a day such as 2026-07-31"),
        (["--events", "10"], "--events 10: expected at least 1,000"),
        (["--members", "10"], "--members 10: expected at least 100"),
        (["--partitions", "0"], "--partitions 0: expected at least 1"),
        (["--rate", "0"], "--rate 0.0: expected a number above 0"),
        (["-X", "acks=7"], "acks"),
    ],
)
def test_wrong_usage_of_generate(headrace, arguments, reason):
    assert reason in headrace("pipeline", "generate", *arguments, status=2).err


def test_generate_without_a_broker(headrace):
    ran = headrace("pipeline", "generate", "-b", "127.0.0.1:1", status=1)
    assert "127.0.0.1:1" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_generate_though_its_broker_has_gone(start, number):
    with Broker(process=True) as gone:
        address = gone.bootstrap_servers
        live = ["--rate", "2000", "--members", "100", "--partitions", "1"]
        running = start("pipeline", "generate", "-b", address, *live)
        wait_until(lambda: _exists(address) and record_count(address, "page-views"), 60)
        gone.kill()
        running.send_signal(number)
        _, printed = running.communicate(timeout=5)
    assert running.returncode == 1
    assert b"stopped before the brokers acknowledged the last" in printed
    assert b"Traceback" not in printed


def _exists(address):
    topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=10).topics
    return "page-views" in topics
