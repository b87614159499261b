"""The places of a table: the same calls on a directory and on S3."""

import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.storage import (
    Location,
    for_spark,
    location_of,
    parse_location,
)
from headrace.spark.failures import BadOption
from tests.fakes.s3_server import new_url, s3_server

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.slow)])
def location(request, tmp_path):
    if request.param == "directory":
        yield location_of(tmp_path / "views")
        return
    with s3_server() as options:
        yield parse_location(new_url(), options)


def write(location, path):
    file = location.create(path)
    pq.write_table(ROWS, file)
    size = file.tell()
    location.finish(path, file)
    return size


def test_write_read_and_delete(location):
    location = pickle.loads(pickle.dumps(location))
    size = write(location, "day=1/a.parquet")
    assert location.sizes(["day=1/a.parquet", "day=1/b.parquet", "c/d"]) == [size, None, None]
    with location.reading("day=1/a.parquet") as file:
        assert file.read() == ROWS
    with (
        pytest.raises(LoadStopped, match=r"day=1/b.parquet cannot be read"),
        location.reading("day=1/b.parquet"),
    ):
        pytest.fail("no such file")
    location.delete("day=1/a.parquet")
    location.delete("day=1/a.parquet")
    assert location.sizes(["day=1/a.parquet"]) == [None]

    letters = location / "_dead_letters"
    assert str(letters) == f"{location}/_dead_letters"
    size = write(letters, "a.parquet")
    assert location.sizes(["_dead_letters/a.parquet"]) == [size]


def test_directories(location):
    assert location.directories() == []
    for path in ("raw/views/a.parquet", "pages/day=1/b.parquet", "c.parquet"):
        write(location, path)
    assert location.directories() == ["pages", "raw"]
    views = location / "raw" / "views"
    assert (location / "raw").directories() == [views.name] == ["views"]
    assert views.directories() == []


def test_a_server_that_does_not_answer_is_named():
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_region": "us-east-1"}
    with pytest.raises(LoadStopped, match="cannot list s3://bucket/tables"):
        parse_location("s3://bucket/tables", options).directories()


def test_what_a_command_line_may_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_location("views", {}) == Location(str(Path.cwd() / "views"))
    options = {"b": "2", "a": "1"}
    assert parse_location("s3a://bucket/a/b/", options) == Location(
        "s3://bucket/a/b", (("a", "1"), ("b", "2"))
    )
    assert parse_location("hdfs://host:8020/a", {}).url == "hdfs://host:8020/a"
    for text, reason in [
        ("gs://bucket/a", "expected a directory, s3://BUCKET/PATH or hdfs://"),
        ("s3://", "expected a directory"),
    ]:
        with pytest.raises(BadOption, match=reason):
            parse_location(text, {})
    with pytest.raises(BadOption, match="--storage-option is for s3://"):
        parse_location("views", options)


def test_without_the_client_of_hdfs_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdfs_native.fsspec", None)
    with pytest.raises(LoadStopped, match=r"pip install 'headrace\[hdfs\]'"):
        parse_location("hdfs://127.0.0.1:1/views", {}).delete("a")


def test_spark_gets_local_paths_with_their_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert for_spark(tmp_path / "date=1") == for_spark("date=1") == f"file:{Path.cwd()}/date=1"
