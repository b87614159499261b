"""``headrace pipeline`` without Spark: wrong usage, and the files of a table."""

import datetime
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.cli import pipeline_load, pipeline_runs
from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.runner.streams import Progress as RunProgress
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.load import Progress
from headrace.pipeline.warehouse.offsets import Decision, Span
from headrace.pipeline.warehouse.rows import DEAD_LETTER_SCHEMA, lost_letter
from headrace.pipeline.warehouse.table import now_ms, open_or_create
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS

ROWS = pa.schema(
    [("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
     ("_offset", pa.int64())]
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--once", "--every", "5s"], "give --once or --reload-from without --continuous and"),
        (["--once", "--continuous"], "give --once or --reload-from without --continuous and"),
        (["--reload-from", "offset:1", "--every", "5s"], "give --once or --reload-from without"),
        (["--reload-from", "offset:x"], "--reload-from 'offset:x': expected offset:N, ISO 8601"),
        (["--every", "often"], "--every 'often': expected a time"),
        (["--value", "xml"], "--value 'xml'"),
        (["--bad-max", "200%"], "--bad-max '200%'"),
        (["--schema", "@/nowhere/schema"], "/nowhere/schema"),
        (["--table", "gs://bucket/views"], "expected a directory, s3://BUCKET/PATH or hdfs://"),
        (["--storage-option", "aws_region=x"], "--storage-option is for s3:// and hdfs://"),
        (["--storage-option", "aws_region"], "--storage-option 'aws_region': expected KEY=VALUE"),
    ],
)
def test_wrong_usage_of_load(headrace, arguments, reason, tmp_path):
    table = str(tmp_path / "t")
    ran = headrace("pipeline", "load", "views", "--table", table, *arguments, status=2)
    assert reason in ran.err and "Traceback" not in ran.err
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("arguments", "forever", "age_s"),
    [
        ([], False, 60),
        (["--continuous"], True, 60),
        (["--every", "5s"], True, 5),
        (["--continuous", "--every", "5m"], True, 300),
    ],
)
def test_a_continuous_load_commits_every_60_s(
    headrace, arguments, forever, age_s, tmp_path, monkeypatch
):
    runs = []

    class Load:
        def __init__(self, spark, settings):
            self.age_s = settings.limits.batch_age_s

        def once(self, report):
            runs.append((self.age_s, False))

        def keep_loading(self, report, wait):
            runs.append((self.age_s, True))

        def close(self):
            pass

    spark = Mock()
    monkeypatch.setattr("headrace.spark.demo.why_not", lambda: None)
    monkeypatch.setattr("headrace.spark.demo.start_spark", lambda *_, **__: spark)
    monkeypatch.setattr("headrace.pipeline.warehouse.load.Load", Load)
    headrace("pipeline", "load", "views", "--table", str(tmp_path / "t"), *arguments)
    assert runs == [(age_s, forever)]


def test_status_of_no_table(headrace, tmp_path):
    ran = headrace("pipeline", "status", "--table", str(tmp_path / "nothing"), status=1)
    assert "there is no Delta table in" in ran.err


@pytest.fixture
def two_files(tmp_path):
    """A table with a file of one partition and a file of two."""
    table = open_or_create(tmp_path / "views", ROWS, [])
    first, end = 0, 3
    for partitions in ((0,), (0, 1)):
        files = PartitionedFiles(table.location, ROWS, f"p{len(partitions)}")
        spans = [Span(TopicPartition("views", n), bytes(16), first, end) for n in partitions]
        for span in spans:
            key = {"_topic": "views", "_topic_id": id_to_text(bytes(16))}
            offsets = range(span.first_offset, span.offset_end)
            rows = [{**key, "_partition": span.place.partition, "_offset": one} for one in offsets]
            files.add((), pa.RecordBatch.from_pylist(rows, ROWS))
        table.commit(Batch(tuple(spans), files.finish(), ROWS, now_ms()))
        first, end = end, end + 4
    return table


@pytest.mark.parametrize(("damaged", "rows"), [("p1", [4, 4]), ("p2", [3])])
def test_status_names_a_damaged_file(headrace, two_files, damaged, rows):
    place = str(two_files.location)
    ran = headrace("pipeline", "status", "--table", place, "--format", "json")
    assert [one["rows"] for one in ran.document] == [7, 4]
    (path,) = (Path(place, file.path) for file in two_files.files() if damaged in file.path)
    content = path.read_bytes()

    path.write_bytes(content[:20])
    ran = headrace("pipeline", "status", "--table", place, "--format", "json", status=1)
    assert [one["rows"] for one in ran.document if one["rows"]] == rows
    assert f"{path} has 20 bytes, and should have {len(content)} bytes" in ran.err
    assert "--reload-from" in ran.err
    path.unlink()
    ran = headrace("pipeline", "status", "--table", place, status=1)
    assert f"{path} is missing" in ran.err and "LOADED-UP-TO" in ran.out


def test_status_names_a_file_with_other_content(headrace, two_files):
    (path,) = (
        Path(str(two_files.location), file.path) for file in two_files.files() if "p2" in file.path
    )
    path.write_bytes(bytes(path.stat().st_size))
    ran = headrace("pipeline", "status", "--table", str(two_files.location), status=1)
    assert f"{path} cannot be read: " in ran.err and "Traceback" not in ran.err


def test_status_names_a_damaged_file_of_dead_letters(headrace, two_files):
    letters = open_or_create(two_files.location / DEAD_LETTERS, DEAD_LETTER_SCHEMA, [])
    files = PartitionedFiles(letters.location, DEAD_LETTER_SCHEMA, "letters")
    files.add((), lost_letter(TopicPartition("views", 0), bytes(16), 5, 12, 0, "lost"))
    letters.commit(Batch((), files.finish(), DEAD_LETTER_SCHEMA, now_ms()))
    path = Path(str(letters.location), letters.files()[0].path)
    for damage in (path.unlink, lambda: path.write_bytes(b"PAR1")):
        damage()
        ran = headrace("pipeline", "status", "--table", str(two_files.location), status=1)
        assert path.name in ran.err and "cannot be read" in ran.err and "Traceback" not in ran.err


def test_compact_and_vacuum(headrace, tmp_path):
    table = str(tmp_path / "t")
    for number in range(3):
        write_deltalake(table, pa.table({"n": [number]}), mode="append")
    assert headrace("pipeline", "compact", "--table", table).lines == [
        "joined 3 files into 1, with 3 rows"
    ]
    assert sorted(DeltaTable(table).to_pyarrow_table().column("n").to_pylist()) == [0, 1, 2]
    again = headrace("pipeline", "compact", "--table", table, "--format", "json")
    assert again.document == {"removed": 0, "added": 0, "row_count": 0}
    listed = headrace("pipeline", "vacuum", "--table", table, "--dry-run", "--format", "json")
    assert listed.document == []
    assert headrace("pipeline", "vacuum", "--table", table, "--dry-run").err == "found 0 files\n"
    refused = headrace("pipeline", "vacuum", "--table", table, "--older-than", "1h", status=1)
    assert "expected at least 24 hours" in refused.err
    wrong = headrace("pipeline", "vacuum", "--table", table, "--older-than", "old", status=2)
    assert "--older-than 'old'" in wrong.err


def test_retention(headrace, tmp_path):
    table = str(tmp_path / "t")
    days = ["1970-01-01", "2026-01-01", "2999-01-01"]
    for day in days:
        rows = pa.table({"n": [1], "event_date": pa.array([day]).cast(pa.date32())})
        write_deltalake(table, rows, mode="append", partition_by=["event_date"])
    arguments = ["pipeline", "retention", "--table", table, "--older-than"]
    (line,) = headrace(*arguments, "30d").lines
    assert line.startswith("removed 2 rows of events before 2") and line.endswith(", in 2 files")
    assert headrace(*arguments, "30d", "--format", "json").document["row_count"] == 0
    assert DeltaTable(table).to_pyarrow_table().column("event_date").to_pylist() == [
        datetime.date(2999, 1, 1)
    ]
    assert "--older-than 'old'" in headrace(*arguments, "old", status=2).err


def test_a_batch_is_reported_in_one_line(capfd):
    span = Span(TopicPartition("views", 0), bytes(16), 0, 61)
    done = Progress(Decision.COMMIT, (span,), 1_060, 1, 2, 3_531, 2.34)
    pipeline_load.report_progress(done)
    pipeline_load.report_progress(done._replace(letter_count=0, row_count=1, file_count=1))
    pipeline_load.report_progress(done._replace(decision=Decision.REPEATED))
    assert capfd.readouterr().out.splitlines() == [
        "committed 1,060 rows and 1 dead letter in 2 files, 3,531 bytes, in 2.3 s",
        "committed 1 row in 1 file, 3,531 bytes, in 2.3 s",
        "dropped 1,060 rows: the table already has the offsets of this batch",
    ]


# --- pipeline files


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "site.py", "--from", "earliest", "--reset"], "give --from or --reset, not both"),
        (
            ["run", "site.py", "--from", "soon"],
            "--from 'soon': expected earliest, latest, ISO 8601",
        ),
        (["run", "site.py", "--warehouse", "s3://b/w"], "s3://b/w is a URL, so --state must name"),
        (["status", "site.py", "--warehouse", "hdfs://b/w"], "so --state must name a directory"),
        (
            ["plan", "site.py", "--warehouse", "gs://b/w"],
            "--warehouse: 'gs://b/w' is not the place",
        ),
        (["stop", "site.py", "--state", "s3://b/w"], "--state s3:/b/w: only directories"),
        (["run", "nothing.py"], "nothing.py: no such file"),
        (["plan", "broken.py"], "broken.py:2: syntax error"),
        (["backfill", "site.py", "--since", "then"], "--since 'then': expected ISO 8601"),
        (["status"], "Usage"),
        (["status", "a.py", "b.py"], "give one pipeline file, or --table"),
    ],
)
def test_wrong_usage_of_pipeline_files(headrace, arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.spark.demo.why_not", lambda: None)
    (tmp_path / "site.py").write_text("")
    (tmp_path / "broken.py").write_text("x = 1\ndef broken(:\n")
    ran = headrace("pipeline", *arguments, status=2)
    assert reason in ran.out + ran.err and "Traceback" not in ran.err
    assert not (tmp_path / "warehouse").exists()


def test_a_pipeline_that_never_ran(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.spark.demo.why_not", lambda: None)
    assert "has not run in the warehouse" in headrace("pipeline", "status", "a.py", status=1).err
    assert "is not running in the warehouse" in headrace("pipeline", "stop", "a.py", status=1).err


def test_progress_is_one_line():
    done = RunProgress(
        "site", "10s", 3, 12_345, 4_115.0, 3.0, 7, 2, 0, 0, 1,
        {"views.short": 4, "views.known": 0}, {"pages": 20, "alerts": 0},
    )  # fmt: skip
    assert pipeline_runs.progress_line(done) == (
        "site/10s batch 3: 12,345 records in 3.0 s, 4,115/s, lag 7; pages 20, 2 late, "
        "1 dead letters, 4 break views.short"
    )
