"""SQL over topics and tables, once and live."""

import json
from datetime import date

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.cli.options import Format
from headrace.cli.sql import LivePrinter, show
from headrace.pipeline.errors import BadQuery
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.sql import SqlSettings, find_views, follow, make_frame
from headrace.pipeline.tables import BatchName, JobTable, Rules

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, item STRING"


@pytest.fixture
def ask(spark, bootstrap, tmp_path):
    """The frame of a query over a warehouse and these topics."""

    def made(text, *topics, **more):
        settings = SqlSettings(tmp_path, {"kafka.bootstrap.servers": bootstrap}, **more)
        return make_frame(spark, text, find_views(tmp_path, topics), settings)

    return made


def rows(frame):
    return [tuple(row) for row in frame.collect()]


def test_a_topic_and_its_bad_values(ask, topics):
    topic = topics.create("orders")
    topics.send(
        topic, [("k", json.dumps({"id": n, "item": "pen"})) for n in range(3)] + ["no json"]
    )
    view = topic.replace("-", "_")
    found = ask(
        f"select item, sum(id), max(_offset), max(_key), count(_bad) from {view} group by item "
        "order by item nulls last",
        topic,
        schemas={topic: ORDERS},
    )
    assert rows(found) == [("pen", 3, 2, "k", 0), (None, None, 3, None, 1)]
    assert rows(ask(f"select value from {view.upper()} where _offset = 3", topic)) == [("no json",)]


def test_tables_show_one_row_per_key_and_their_partitions(ask, spark, tmp_path):
    counts = JobTable(tmp_path / "counts", Rules(("page",), {"views": "sum"}))
    for number in range(2):
        counts.append(spark.sql("select '/' as page, 5L as views"), BatchName("query", number))
    declared = {"counts": {"key": ["page"], "merge": {"views": "sum"}}}
    directory = PipelineDirectory(tmp_path / "_pipelines" / "counting")
    with directory.locked():
        directory.record({"table": declared}, {})
    for day, number in ((date(2026, 11, 16), 1), (date(2026, 11, 17), 2)):
        raw = pa.table({"n": [number], "event_date": [day]})
        write_deltalake(tmp_path / "raw" / "views", raw, mode="append", partition_by=["event_date"])
    found = ask(
        "select views, n, event_date from counts cross join raw_views "
        "where event_date >= '2026-11-17'"
    )
    assert rows(found) == [(10, 2, date(2026, 11, 17))]


def test_a_mistake_is_explained(ask, topics):
    topic = topics.create("spelled")
    view = topic.replace("-", "_")
    with pytest.raises(
        BadQuery, match=f"there is no view '{view}s' .did you mean {view}.*Topics: "
    ):
        ask(f"select * from {view}s", topic)
    with pytest.raises(BadQuery, match="PARSE_SYNTAX_ERROR") as wrong:
        ask("selec 1", topic)
    assert "JVM" not in str(wrong.value)
    with pytest.raises(BadQuery, match="UNRESOLVED_COLUMN"):
        ask(f"select price from {view}", topic)
    with pytest.raises(BadQuery, match="reads at least one topic"):
        ask("select 1", topic, live=True)


def test_a_live_query_shows_rows_as_they_come(ask, topics, tmp_path, capfd):
    topic = topics.create("live")
    view = topic.replace("-", "_")
    topics.send(topic, [json.dumps({"id": n, "item": "pen"}) for n in range(2)])
    frame = ask(
        f"select item, count(*) as orders from {view} group by item",
        topic,
        schemas={topic: ORDERS},
        live=True,
        from_beginning=True,
    )
    printer = LivePrinter(Format.JSON, 2)
    sent = []

    def shown(batch):
        if batch.num_rows and not sent:
            sent.append(batch)
            topics.send(topic, [json.dumps({"id": 9, "item": "pen"})])
        return printer.show(batch)

    follow(frame, tmp_path / "checkpoint", shown, lambda: False)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert lines == [{"item": "pen", "orders": 2}, {"item": "pen", "orders": 3}]
    sorted_rows = ask(f"select * from {view} order by value", topic, live=True)
    with pytest.raises(BadQuery, match="cannot be a live query"):
        follow(sorted_rows, tmp_path / "other", printer.show, lambda: False)


def test_rows_are_printed(spark, capfd):
    frame = spark.sql(
        "select 1 as n, timestamp '2026-11-17 12:00:00' as at, array('a', 'b') as words, "
        "x'00ff' as raw, null as nothing, 1.50BD as price union all select 2, null, null, "
        "null, null, null order by 1"
    )
    show(frame, 1, Format.TABLE)
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [
        "n  at                         words       raw   nothing  price",
        '1  2026-11-17T12:00:00+00:00  ["a", "b"]  00ff  -        1.50',
    ]
    assert "first 1 row; see --limit" in printed.err
    show(frame, 5, Format.JSON)
    first, second = json.loads(capfd.readouterr().out)
    assert first == {
        "n": 1, "at": "2026-11-17T12:00:00+00:00", "words": ["a", "b"], "raw": "00ff",
        "nothing": None, "price": "1.50",
    }  # fmt: skip
    assert second["n"] == 2
