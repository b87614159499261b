"""``headrace sql`` without Spark: the views that there are, and wrong usage."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.fakes.s3_server import new_url, s3_server


def test_the_views_are_listed(headrace, topic, tmp_path):
    headrace("topics", "create", topic)
    write_deltalake(tmp_path / "raw" / "orders", pa.table({"n": [1]}))
    ran = headrace("sql", "--warehouse", str(tmp_path), "--format", "json")
    table = {"name": "raw_orders", "kind": "table", "place": "raw/orders"}
    assert ran.document[0] == table
    assert {"name": topic.replace("-", "_"), "kind": "topic", "place": topic} in ran.document
    printed = headrace("sql", "--warehouse", str(tmp_path))
    assert printed.lines[0].split() == ["VIEW", "KIND", "PLACE"]
    # Tables can be queried without a broker.
    alone = headrace("sql", "--warehouse", str(tmp_path), "-b", "127.0.0.1:1", "--format", "json")
    assert alone.document == [table] and "only tables can be queried" in alone.err


@pytest.mark.slow
def test_the_views_of_a_warehouse_on_s3_are_listed(headrace):
    with s3_server() as options:
        url = new_url()
        write_deltalake(f"{url}/raw/orders", pa.table({"n": [1]}), storage_options=options)
        storage = [f"--storage-option={name}={value}" for name, value in options.items()]
        ran = headrace("sql", "--warehouse", url, *storage, "-b", "127.0.0.1:1", "--format", "json")
        assert ran.document == [{"name": "raw_orders", "kind": "table", "place": "raw/orders"}]
        letters = ["pipeline", "deadletters", "list", "--warehouse", url, *storage]
        assert headrace(*letters, "--format", "json").document == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--limit", "0"], "--limit 0: expected at least 1"),
        (["--from-beginning"], "--from-beginning is for --live"),
        (["--schema", "orders"], "--schema 'orders': expected KEY=VALUE"),
        (["--schema", "nothing=id BIGINT"], "there is no topic 'nothing'"),
        (["--warehouse", "gs://bucket/tables"], "expected a directory, s3://BUCKET/PATH or hdfs"),
    ],
)
def test_wrong_usage(headrace, arguments, reason):
    assert reason in headrace("sql", "select 1", *arguments, status=2).err


def test_a_wrong_schema(headrace, topic):
    headrace("topics", "create", topic)
    ran = headrace("sql", "select 1", "--schema", f"{topic}=id NUMBER", status=2)
    assert "NUMBER" in ran.err


def test_a_live_query_needs_a_broker(headrace, tmp_path):
    ran = headrace(
        "sql", "--live", "select 1", "--warehouse", str(tmp_path), "-b", "127.0.0.1:1", status=1
    )
    assert "cannot reach a broker" in ran.err
