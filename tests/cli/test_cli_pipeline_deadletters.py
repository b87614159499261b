"""``headrace pipeline deadletters`` on tables that loads and pipelines have written."""

import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.arrow.columns import HEADERS_TYPE, open_sections
from headrace.arrow.json_values import JsonParser
from headrace.arrow.selection import select_batches
from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.quality.dead_letters import DECISIONS
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.rows import (
    DEAD_LETTER_SCHEMA,
    EventTime,
    RowBuilder,
    RowSettings,
    lost_letter,
)
from headrace.pipeline.warehouse.storage import location_of
from headrace.pipeline.warehouse.table import now_ms, open_or_create
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS
from headrace.records.record import Record, build_batch

ID = bytes(range(16))
VALUE = pa.schema([("user", pa.int64())])
SENT_MS = 1_795_000_000_000
# What Spark's source and the runner make of a record.
RUNNER_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("value", pa.binary()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("pipeline", pa.string()),
    ]
)


def load(directory, *bad_values):
    """What a load does with these records of ``views:3``."""
    settings = RowSettings(VALUE, True, True, (), EventTime(), now_ms())
    records = [
        Record(offset, SENT_MS, b"key", value, (("trace", b"\xff"), ("empty", None)))
        for offset, value in enumerate(bad_values)
    ]
    selected = select_batches(
        memoryview(build_batch(records)), 0, len(records), None, check_crcs=True
    )
    (found,) = open_sections(selected.sections)
    parse = JsonParser(pa.struct(list(VALUE))).parse
    (built,) = RowBuilder(settings, TopicPartition("views", 3), ID, parse).build(found)
    open_or_create(directory, settings.table_schema, [])
    commit(directory, built.letters)


def commit(directory, letters):
    location = location_of(directory) / DEAD_LETTERS
    files = PartitionedFiles(location, DEAD_LETTER_SCHEMA, uuid.uuid4().hex)
    files.add((), letters)
    table = open_or_create(location, DEAD_LETTER_SCHEMA, [])
    table.commit(Batch((), files.finish(), DEAD_LETTER_SCHEMA, now_ms()))


def run_batch(warehouse, number, *offsets, pipeline="shop", sent=datetime(2026, 3, 1, tzinfo=UTC)):
    """What a batch of a pipeline does with late records of ``views:3``."""
    rows = [
        {
            "topic": "views",
            "partition": 3,
            "offset": offset,
            "timestamp": sent,
            "key": None,
            "headers": None,
            "value": b'{"user": 1}',
            "stage": "late",
            "reason": f"at is 2026-02-0{offset} 10:00:00, and the record arrived later",
            "pipeline": pipeline,
        }
        for offset in offsets
    ]
    append(warehouse, pa.Table.from_pylist(rows, RUNNER_SCHEMA), BatchName(pipeline, number))


def append(warehouse, letters, batch):
    table = JobTable(warehouse / DEAD_LETTERS, Rules(("topic", "partition", "offset", "stage")))
    table.append_few(letters, batch)


@pytest.fixture
def warehouse(tmp_path):
    """The load ran its batch twice, and two pipelines failed at the same records."""
    for _ in range(2):
        load(tmp_path / "raw" / "views", b"{", b"\xfe\x00")
    run_batch(tmp_path, 0, 4, 5)
    run_batch(tmp_path, 0, 5, pipeline="other")
    return tmp_path


@pytest.fixture
def deadletters(headrace, warehouse):
    def run(verb, *arguments, **more):
        return headrace(
            "pipeline", "deadletters", verb, *arguments, "--warehouse", str(warehouse), **more
        )

    return run


def listed(deadletters, *arguments):
    found = deadletters("list", "--each", "--format", "json", *arguments).document
    return sorted((one["pipeline"] or one["table"], one["offset"]) for one in found)


ALL = [("other", 5), ("raw/views", 0), ("raw/views", 1), ("shop", 4), ("shop", 5)]


def test_every_letter_is_listed_once(deadletters):
    assert listed(deadletters) == ALL
    lines = deadletters("list", "--each").lines
    assert lines[0].split() == ["RECORD", "FROM", "STAGE", "WRITTEN", "REASON"]
    assert len(lines) == 6
    assert any(line.startswith("views:3:4  pipeline shop") for line in lines)


def test_the_summary(deadletters):
    found = deadletters("list", "--format", "json").document
    late = next(one for one in found if one["pipeline"] == "shop")
    assert (late["topic"], late["stage"], late["records"]) == ("views", "late", 2)
    assert late["reason"] == "at is …, and the record arrived later"
    lines = deadletters("list").lines
    assert lines[0].split()[:3] == ["FROM", "TOPIC", "STAGE"] and len(lines) == len(found) + 1


def test_filters(deadletters, warehouse):
    assert listed(deadletters, "--pipeline", "shop") == [("shop", 4), ("shop", 5)]
    assert listed(deadletters, "--stage", "decode") == [("raw/views", 0), ("raw/views", 1)]
    assert listed(deadletters, "--topic", "clicks") == []
    assert listed(deadletters, "--since", "1h") == ALL
    assert listed(deadletters, "--since", str(now_ms() + 1)) == []
    table = str(warehouse / "raw" / "views")
    assert listed(deadletters, "--table", table) == [(table, 0), (table, 1)]


def test_limit(deadletters):
    ran = deadletters("list", "--each", "--limit", "2")
    assert len(ran.lines) == 3 and "3 more" in ran.err


def test_show(deadletters):
    text = deadletters("show", "views:3:1").out
    assert id_to_text(ID) in text and "table raw/views" in text
    assert "value      0xfe00" in text and "header     trace=0xff" in text
    assert "header     empty=null" in text and "key        key" in text
    assert "timestamp  2026-11-18T" in text

    first, second = deadletters("show", "views:3:5", "--format", "json").document
    assert {first["pipeline"], second["pipeline"]} == {"shop", "other"}
    assert first["value"] == '{"user": 1}' and first["key"] is None
    assert first["timestamp_ms"] == 1_772_323_200_000

    assert "no dead letter at views:3:9" in deadletters("show", "views:3:9", status=1).err
    assert "expected TOPIC:PARTITION:OFFSET" in deadletters("show", "views:3", status=2).err


def test_a_lost_range_is_shown_by_any_of_its_offsets(deadletters, warehouse):
    letter = lost_letter(TopicPartition("views", 3), ID, 100, 200, now_ms(), "retention was faster")
    commit(warehouse / "raw" / "views", letter)
    assert "last offset  199" in deadletters("show", "views:3:150").out
    (lost,) = deadletters("list", "--stage", "lost", "--format", "json").document
    assert lost["records"] == 100


def test_rows_that_broke_a_rule_are_no_records_and_have_a_place_too(deadletters, warehouse):
    row = {
        "topic": "following",
        "partition": -1,
        "offset": 99,
        "value": b"{}",
        "stage": "expectation",
        "rule": "has_member",
        "reason": "following: member is not null is not true",
        "pipeline": "feed",
    }
    schema = RUNNER_SCHEMA.append(pa.field("rule", pa.string()))
    append(warehouse, pa.Table.from_pylist([row], schema), BatchName("feed", 0))
    assert listed(deadletters) == [("feed", 99), *ALL]
    assert "has_member" in deadletters("list").out
    assert "has_member" in deadletters("show", "following:-1:99").out
    deadletters("drop", "following:-1:99")
    assert listed(deadletters) == ALL


def test_dropped_letters_are_hidden_even_if_they_are_written_again(deadletters, warehouse):
    assert deadletters("drop", "--pipeline", "shop").out == "Dropped 2 dead letters.\n"
    assert deadletters("drop", "views:3:1", "--format", "json").document == {"dropped": 1}
    left = [("other", 5), ("raw/views", 0)]
    assert listed(deadletters) == left

    load(warehouse / "raw" / "views", b"{", b"\xfe\x00")
    run_batch(warehouse, 1, 4, 5)
    assert listed(deadletters) == left
    assert "dropped" in deadletters("show", "views:3:1").out

    # The letters themselves stay, and another record of a topic that was created again is new.
    assert DeltaTable(str(warehouse / DEAD_LETTERS)).to_pyarrow_table().num_rows == 5
    assert DeltaTable(str(warehouse / DECISIONS)).to_pyarrow_table().num_rows == 2
    run_batch(warehouse, 2, 4, sent=datetime(2026, 3, 2, tzinfo=UTC))
    assert listed(deadletters) == [*left, ("shop", 4)]


def test_drop_asks_on_a_terminal(deadletters):
    ran = deadletters("drop", "--topic", "views", stdin=b"n\n", typed=True, status=1)
    assert "Drop 5 dead letters?" in ran.err and "nothing dropped" in ran.err
    assert listed(deadletters) == ALL
    deadletters("drop", "--topic", "views", "--yes", typed=True)
    ran = deadletters("list")
    assert (ran.out, ran.err) == ("", "There are no dead letters.\n")


def test_refusals(deadletters, headrace, tmp_path):
    assert "name records as" in deadletters("drop", status=2).err
    assert "is selected" in deadletters("drop", "--topic", "clicks", status=1).err
    ran = deadletters("drop", "views:3:1", "views:3:7", status=1)
    assert "no dead letter at views:3:7" in ran.err
    assert listed(deadletters) == ALL
    ran = deadletters("list", "--pipeline", "a", "--table", "b", status=2)
    assert "--pipeline or --table" in ran.err
    away = str(tmp_path / "away")
    ran = headrace("pipeline", "deadletters", "list", "--warehouse", away, status=1)
    assert "is not a directory" in ran.err


def test_a_damaged_file_is_named(deadletters, warehouse):
    file = next((warehouse / DEAD_LETTERS).glob("*.parquet"))
    file.write_bytes(b"")
    assert f"{file} cannot be read" in deadletters("list", status=1).err


def test_vacuum_keeps_letters_and_decisions(deadletters, headrace, warehouse):
    deadletters("drop", "views:3:1")
    table = warehouse / "raw" / "views"
    headrace("pipeline", "vacuum", "--table", str(table), "--older-than", "1d")
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert ("raw/views", 0) in listed(deadletters) and ("raw/views", 1) not in listed(deadletters)


def test_resend_sends_records_to_the_retry_topic_of_their_pipeline(
    headrace, warehouse, broker, topic
):
    schema = RUNNER_SCHEMA.append(pa.field("topic_id", pa.string()))
    schema = schema.append(pa.field("attempt", pa.int32())).append(pa.field("sinks", pa.string()))
    pipeline = f"p{uuid.uuid4().hex}"  # other tests share the broker
    rows = [
        {
            "topic": topic,
            "topic_id": id_to_text(ID),
            "partition": partition,
            "offset": 7,
            "timestamp": datetime(2026, 3, 1, tzinfo=UTC),
            "key": b"key",
            "headers": [{"key": "trace", "value": b"\xff"}, {"key": "empty", "value": None}],
            "value": b"\xfe",
            "stage": "step",
            "reason": "broken",
            "pipeline": pipeline,
            "attempt": 1,
            "sinks": "pages",
        }
        for partition in (0, -1)
    ]
    append(warehouse, pa.Table.from_pylist(rows, schema), BatchName(pipeline, 0))

    def resend(*arguments, **more):
        command = ("pipeline", "deadletters", "resend", *arguments, "--warehouse", str(warehouse))
        return headrace(*command, **more)

    def listed_here():
        command = ("pipeline", "deadletters", "list", "--each", "--pipeline", pipeline)
        found = headrace(*command, "--format", "json", "--warehouse", str(warehouse)).document
        return [one["partition"] for one in found]

    assert "is a row of a function" in resend(f"{topic}:-1:7", status=1).err
    assert "--reload-from" in resend("views:3:1", status=1).err
    ran = resend("--pipeline", pipeline)
    assert ran.out == "Sent 1 dead letter.\n" and f"such as {topic}:-1:7" in ran.err
    assert listed_here() == [-1]
    assert (
        "resent"
        in headrace(
            "pipeline", "deadletters", "show", f"{topic}:0:7", "--warehouse", str(warehouse)
        ).out
    )
    assert "nothing sent" in resend(f"{topic}:0:7", status=1).err
    again = resend(f"{topic}:0:7", "--again", "--format", "json").document
    assert again == {"sent": 1, "left_out": 0}

    first, second = broker.records(f"headrace-{pipeline}-retry")
    assert (first.key, first.value, first.headers) == (b"key", b"\xfe", second.headers)
    headers = dict(first.headers)
    assert (headers["trace"], headers["empty"]) == (b"\xff", None)
    prefix = "__headrace.errors."
    assert {name.removeprefix(prefix): value for name, value in headers.items()} == {
        "trace": b"\xff",
        "empty": None,
        "topic": topic.encode(),
        "topicid": id_to_text(ID).encode(),
        "partition": b"0",
        "offset": b"7",
        "timestamp": b"1772323200000",
        "attempt": b"2",
        "pipeline": pipeline.encode(),
        "stage": b"step",
        "reason": b"broken",
        "sinks": b"pages",
    }

    # The pipeline tried, and failed again.
    rows[0]["attempt"] = 2
    append(warehouse, pa.Table.from_pylist(rows[:1], schema), BatchName(pipeline, 1))
    assert listed_here() == [0, -1]
