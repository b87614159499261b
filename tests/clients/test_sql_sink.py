"""Records in a SQL database, each once: over kills, second runs and two sinks at once."""

import itertools
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.ship import SinkFailed, SqlSink
from headrace.testing import Broker
from tests.clients.sql_sink_process import make_sink, open_database
from tests.fakes.waiting import wait_until

RECORDS = 3_000
_numbers = itertools.count()
PROGRAM = Path(__file__).with_name("sql_sink_process.py")


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """The socket of a PostgreSQL server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its import, about the environment
        pgserver = pytest.importorskip("pgserver", reason="no wheel of PostgreSQL for this Python")
    pytest.importorskip("pg8000.dbapi")
    directory = tmp_path_factory.mktemp("postgres")
    # The server does not run as root, and must reach its directory.
    for one in (directory, directory.parent, directory.parent.parent):
        one.chmod(0o755)
    server = pgserver.get_server(directory / "data", cleanup_mode="stop")
    yield str(directory / "data" / ".s.PGSQL.5432")
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    """Kind and address of a database with an empty table."""
    target = str(tmp_path / "copy.db")
    if request.param == "postgres":
        target = request.getfixturevalue("postgres")
    sql(request.param, target, "drop table if exists copied")
    sql(request.param, target, "drop table if exists headrace_offsets")
    # No key: the database would refuse what the sink doubles, and hide it.
    sql(request.param, target, "create table copied (part integer, pos bigint, value text)")
    return request.param, target


def sql(kind, target, text):
    connection, _ = open_database(kind, target)
    try:
        cursor = connection.cursor()
        cursor.execute(text)
        found = cursor.fetchall() if text.startswith("select") else []
        connection.commit()
        return [tuple(row) for row in found]
    finally:
        connection.close()


def copied(database):
    return sql(*database, "select part, pos, value from copied order by part, pos")


@pytest.fixture
def broker(headrace_broker):
    return headrace_broker


@pytest.fixture
def topic():
    return f"sql-sink-{next(_numbers)}"


@pytest.fixture
def filled(broker, topic):
    """Fills a topic of two partitions with numbered records."""
    broker.create_topics({topic: 2})
    return lambda first=0, count=RECORDS: fill(broker.bootstrap_servers, topic, first, count)


def fill(bootstrap, topic, first, count):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(30) == 0


def expected(count=RECORDS):
    rows = [(number % 2, number // 2, str(number)) for number in range(count)]
    return sorted(rows)


def test_each_record_is_written_once_although_the_sink_is_killed(database, broker, topic, filled):
    filled()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    command = [sys.executable, str(PROGRAM), *database, broker.bootstrap_servers, topic]
    for part in (1, 2, 3):
        process = subprocess.Popen(command, env=environment)
        try:
            wait_until(lambda part=part: len(copied(database)) >= part * 500, 120)
        finally:
            process.kill()
            process.wait()
    assert len(copied(database)) < RECORDS, "it was killed in the middle"
    sink = make_sink(*database, broker.bootstrap_servers, topic)
    sink.run(once=True)
    assert sink.run(once=True) == 0, "a second run has nothing to write"
    assert copied(database) == expected()


def test_two_sinks_at_once_double_nothing(database, broker, topic, filled):
    filled()
    sinks = [
        make_sink(*database, broker.bootstrap_servers, topic, batch_records=100) for _ in range(2)
    ]
    stopped = threading.Event()
    stopped.set()
    sinks[0].run(stop=stopped)  # creates the offsets, and writes nothing
    threads = [threading.Thread(target=sink.run, kwargs={"once": True}) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert copied(database) == expected()


def test_rows_that_the_database_refuses_move_no_offset(database, broker, topic, filled):
    filled(count=10)
    sink = make_sink(*database, broker.bootstrap_servers, topic)
    sql(*database, "drop table copied")
    with pytest.raises(Exception, match="copied"):
        sink.run(once=True)
    sql(*database, "create table copied (part integer, pos bigint, value text)")
    assert sink.run(once=True) == 10
    assert copied(database) == expected(10)


def test_records_that_left_the_log_stop_the_sink(tmp_path):
    database = ("sqlite", str(tmp_path / "copy.db"))
    sql(*database, "create table copied (part integer, pos bigint, value text)")
    with Broker() as broker:
        broker.create_topics({"orders": 2})
        fill(broker.bootstrap_servers, "orders", 0, 10)
        sink = make_sink(*database, broker.bootstrap_servers, "orders")
        assert sink.run(once=True) == 10
        sql(*database, "update headrace_offsets set next_offset = 99 where partition_id = 1")
        with pytest.raises(SinkFailed, match="offset 99 of orders:1, but the log has offsets 0 to"):
            sink.run(once=True)
        absent = make_sink(*database, broker.bootstrap_servers, "absent")
        with pytest.raises(SinkFailed, match="absent"):
            absent.run(once=True)
    with pytest.raises(ValueError, match="paramstyle"):
        SqlSink(lambda: None, "127.0.0.1:1", "orders", print, paramstyle="named")
