"""``headrace pipeline plan``, ``run`` and ``state`` of a file, in the session of the tests."""

import json
import textwrap

import pytest

from headrace.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILE = """
from pyspark.sql import functions as F
from headrace.pipeline import source, step, table, topic

@source("{topic}", schema="event_id string, page string, visitor long", event_id="event_id")
def views(records):
    return records

@step
def shop_views(views):
    return "select * from views where page like '/shop/%'"

@table(key=["page"], merge={"views": "sum"})
def pages(shop_views):
    return shop_views.groupBy("page").agg(F.count("*").alias("views"))

@topic("{out}", key="visitor")
def announced(views):
    return views.select("visitor", "page")
"""


class Commands:
    """Runs commands on a pipeline file, beside its warehouse."""

    def __init__(self, topics, directory, capfd):
        self.topic, self.out = topics.create("views", 2), topics.create("out")
        self.file = directory / "site.py"
        self._capfd = capfd

    def write(self, *changes):
        """Write the file. Each change is a pair: a text of it, and what replaces that."""
        text = textwrap.dedent(FILE)
        for before, after in (("{topic}", self.topic), ("{out}", self.out), *changes):
            assert before in text
            text = text.replace(before, after)
        self.file.write_text(text)

    def run(self, command, *options, status=0):
        """The lines of stdout; those of stderr if the command fails."""
        printed = self._ran(status, command, *options)
        return (printed.err if status else printed.out).splitlines()

    def document(self, command):
        return json.loads(self._ran(0, command, "--format", "json").out)

    def documents(self, command, status):
        """One in each line of stdout."""
        printed = self._ran(status, command, "--format", "json")
        return [json.loads(line) for line in printed.out.splitlines()]

    def _ran(self, status, command, *options):
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", command, "site.py", *options])
        printed = self._capfd.readouterr()
        assert ended.value.code == status, printed.err or printed.out
        return printed


@pytest.fixture
def commands(spark, topics, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(
        "headrace.pipeline.runner.session.start_session", lambda *given, **named: spark
    )
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", topics.bootstrap)
    monkeypatch.chdir(tmp_path)
    yield Commands(topics, tmp_path, capfd)
    spark.sparkContext.setLogLevel("ERROR")  # commands set another one


def words(lines):
    """Lines without the widths of their columns."""
    return [" ".join(line.split()) for line in lines]


def test_plan_run_and_state(commands, topics, tmp_path):
    commands.write()
    events = [{"event_id": str(n), "page": f"/shop/{n % 2}", "visitor": n} for n in range(5)]
    topics.send(commands.topic, map(json.dumps, events[:3]), 0)
    topics.send(commands.topic, map(json.dumps, events[3:]), 1)

    planned = words(commands.run("plan"))
    assert planned[1:] == [
        "QUERY READS PARTITIONS PENDING",
        f"10s {commands.topic} 2 5",
        "QUERY WRITES NAME KEY COLUMNS",
        "10s table pages page page, views",
        f"10s topic {commands.out} visitor visitor, page",
        "It has not run in this warehouse yet: all records will be read.",
    ]
    assert "site: 1 query" in planned[0]
    document = commands.document("plan")
    assert (document["pipeline"], document["first_run"], document["changes"]) == ("site", True, [])
    assert (document["requires"], document["refused"]) == (None, None)
    reading = {"query": "10s", "topic": commands.topic, "partitions": 2, "pending": 5}
    assert document["reads"] == [reading]
    (query,) = document["queries"]
    assert (query["sources"], query["steps"]) == (["views"], ["shop_views"])
    assert (query["tables"], query["topics"]) == (["pages"], ["announced"])
    assert document["columns"] == {"pages": {"page": "string", "views": "bigint"}}
    assert not (tmp_path / "warehouse").exists()

    (line,) = commands.run("run", "--once")
    assert line.startswith("site/10s batch 0: 5 records in ")
    assert line.endswith("; pages 2, announced 5")
    planned = words(commands.run("plan"))
    assert f"10s {commands.topic} 2 0" in planned
    assert planned[-1] == "Nothing changed since the last run."

    # A key is the topic of an event and its ID.
    keys = [f"{commands.topic} id/{number}" for number in range(3)]
    headings, state = words(commands.run("state"))
    assert headings == "QUERY OPERATOR KEYS BYTES BATCH EXAMPLES"
    query, operator, count, size, batch, *examples = state.split(maxsplit=5)
    assert (query, operator, count, batch) == ("10s", "dedupeWithinWatermark", "5", "0")
    assert int(size.replace(",", "")) > 0 and examples == ["; ".join(keys)]
    (found,) = commands.document("state")
    assert (found["keys"], found["bytes"] > 0, len(found["examples"])) == (5, True, 3)
    first = found["examples"][0]
    assert " ".join(first["key"].values()) == keys[0]
    assert first["value"]["expiresAtMicros"] > 0


def test_plan_tells_what_changed_and_what_a_run_would_refuse(commands, topics):
    commands.write()
    topics.send(commands.topic, ['{"event_id": "1", "page": "/shop/a", "visitor": 1}'], 0)
    commands.run("run", "--once")
    commands.write(
        ("like '/shop/%'", "like '/shops/%'"),
        ('key="visitor")', 'key="visitor", compacted=True)'),
        ('key=["page"]', 'key=["page", "day"]'),
        ('groupBy("page")', 'groupBy("page", F.current_date().alias("day"))'),
    )
    changed = [line for line in commands.run("plan") if line.startswith("changed: ")]
    assert changed == [
        "changed: step shop_views: its code changed; rows from now on follow it (compatible)",
        "changed: table pages: key was ['page'] and is ['page', 'day']; its rows would not merge "
        "(needs --reset)",
        "changed: table pages: new column day date, null in older rows (compatible)",
        "changed: table pages: its code changed; rows from now on follow it (compatible)",
        "changed: topic announced: compacted was False and is True (compatible)",
        "changed: topic announced: its code changed; rows from now on follow it (compatible)",
    ]
    document = commands.document("plan")
    assert (document["first_run"], document["requires"]) == (False, "reset")
    assert [one["requires"] for one in document["changes"]] == ["", "reset", "", "", "", ""]
    (said,) = commands.run("run", "--once", status=1)
    assert said == f"headrace: {document['refused']}"
    assert "its rows would not merge. Run it with --reset" in said

    commands.write(('key=["page"], merge', 'key=["page"], trigger="5 seconds", merge'))
    *_, moved, _, refused = commands.run("plan")
    assert moved.startswith("changed: table pages: its query was 10s and is 5s")
    assert moved.endswith("(needs --from or --reset)")
    assert refused.startswith(
        "A run would be refused: site changed since its last run: table pages"
    )


def test_examples_run_on_a_broker_of_their_own(commands):
    commands.write(
        ("source, step, table, topic", "example, source, step, table, topic"),
        ('"visitor", "page")', '"visitor", F.expr("repeat(page, visitor)").alias("page"))'),
    )
    with commands.file.open("a") as file:
        file.write(
            textwrap.dedent("""
            VIEW = {"event_id": "1", "page": "/shop/a", "visitor": 1}

            @example
            def a_repeated_event_and_a_record_that_its_topic_refuses():
                large = {"event_id": "2", "page": "/shop/b", "visitor": 200_000}
                return [{"views": [VIEW, large]}, {"views": [VIEW]}], {
                    "pages": [{"page": "/shop/a", "views": 1}, {"page": "/shop/b", "views": 1}],
                    "announced": [{"visitor": 1, "page": "/shop/a"}],
                }

            @example
            def wrong():
                return {"views": [VIEW]}, {"pages": [], "announced": [{"visitor": 2}]}
            """)
        )
    right, wrong = commands.documents("test", status=1)  # because one of two failed
    assert (right["example"][:18], right["problems"]) == ("a_repeated_event_a", [])
    assert wrong["problems"] == [
        "table pages has {}, which was not expected",
        "topic announced lacks {'visitor': 2}",
        "topic announced has {'visitor': 1}, which was not expected",
    ]


def test_mistakes_are_named_with_file_and_line(commands, tmp_path):
    commands.write(("page string", "page strng"), ('key=["page"], merge', 'key="page", merge'))
    said = commands.run("plan", status=2)
    assert said[0] == "headrace: 2 mistakes"
    assert sorted(said[1:]) == [
        f"{tmp_path}/site.py:13: table pages: key is 'page'; use a list of columns",
        f"{tmp_path}/site.py:5: source views: schema: field 'page' has the unknown type "
        "'strng' (did you mean STRING?)",
    ]
