"""What the live part of the demo prints: alerts, top pages of the last minutes, lag."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import write_deltalake

from headrace.cli.demo_live import LiveView
from headrace.client.cluster import ClientSettings
from headrace.pipeline.runner.streams import Progress
from headrace.pipeline.warehouse.load import Progress as Loaded
from headrace.pipeline.warehouse.offsets import Decision
from headrace.spark.cluster import Cluster
from headrace.testing import Broker

CRAWLER = {
    "incident_id": "crawler/10.0.0.7/2026-11-16", "kind": "crawler", "client": "10.0.0.7",
    "since": "2026-11-16T10:00:00Z", "until": "2026-11-16T10:01:00Z", "score": 1.4,
    "evidence": {"events": 168, "targets": 90, "allowed": 120, "seconds": 60},
}  # fmt: skip
SLOW = {"service": "search", "kind": "slow", "since": "2026", "state": "raised", "value": 0.123}


def batch(query):
    return Progress("security", query, 1, 10, 5.0, 2.0, 0, 0, 0, 0, 0, {}, {"clients": 3})


@pytest.fixture
def broker():
    """With no other topics: the names of those for alerts are fixed."""
    with Broker() as running:
        yield running


@pytest.fixture
def send(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def run(topic, *alerts):
        for alert in alerts:
            producer.produce(topic, json.dumps(alert).encode(), b"key")
        assert producer.flush(10) == 0

    return run


@pytest.fixture
def cluster(broker, send):
    send("alerts", CRAWLER)  # of the day: the demo showed it before
    send("operations-alerts", SLOW)
    made = Cluster(ClientSettings(broker.bootstrap_servers))
    yield made
    made.close()


def test_alerts_are_shown_once_as_they_come(cluster, send, tmp_path, capfd):
    view = LiveView(cluster, tmp_path, 1_000)
    view.ran(batch("1s"))
    assert capfd.readouterr().out == ""
    send("alerts", CRAWLER | {"client": "10.0.0.8"})
    send("operations-alerts", SLOW)
    view.ran(batch("1s"))
    view.ran(batch("1s"))
    assert sorted(capfd.readouterr().out.splitlines()) == [
        "   ! crawler 10.0.0.8: 168 events in 60 s, allowed are 120",
        "   ! search slow: raised at 12.3%",
    ]


def test_many_alerts_are_counted(cluster, send, tmp_path, capfd):
    view = LiveView(cluster, tmp_path, 0)
    send("alerts", *[CRAWLER] * 8)
    view.ran(batch("1s"))
    printed = capfd.readouterr().out
    assert printed.count("! crawler") == 5 and "8 alerts (3 not shown)" in printed
    view.ran(batch("1s"))
    assert "8 alerts\n" in capfd.readouterr().out


def test_what_moves_is_shown_at_an_interval(broker, cluster, send, tmp_path, capfd):
    view = LiveView(cluster, tmp_path, 0)
    send("views", *[{}] * 7)
    group = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "headrace-security-1s"}
    consumer = Consumer(group)
    consumer.commit(offsets=[TopicPartition("views", 0, 2)], asynchronous=False)
    consumer.close()
    now = datetime.now(UTC)
    counts = [("/new", now, 3), ("/new", now - timedelta(minutes=1), 4), ("/other", now, 5)]
    counts += [("/old", now - timedelta(hours=1), 900)]
    rows = [{"page": page, "minute": minute, "views": n} for page, minute, n in counts]
    write_deltalake(str(tmp_path / "page_minutes"), pa.Table.from_pylist(rows))
    view.sent(1_500)
    for topic in ("views", "posts"):
        view.loaded(topic, Loaded(Decision.COMMIT, (), 600, 1, 1, 1, 0.1))
    view.ran(batch("1s"))
    capfd.readouterr()
    view.ran(batch("30s"))
    first, pages, lag = capfd.readouterr().out.splitlines()
    assert first.endswith("1,500 events, 1,200 rows loaded, 0 alerts")
    assert pages.strip() == "top pages of 5 minutes: /new 7, /other 5"
    assert lag.strip() == "lag: security/1s 5, security/30s unknown"


def test_without_a_table_there_are_no_pages_yet(cluster, tmp_path, capfd):
    LiveView(cluster, tmp_path, 0).ran(batch("1s"))
    assert "top pages of 5 minutes: none yet" in capfd.readouterr().out
