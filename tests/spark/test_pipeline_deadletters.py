"""Dead letters of a pipeline: in a table and a topic, and sent back to the pipeline."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.client.cluster import ClientSettings
from headrace.model.dead_letters import DEAD_LETTER_CONFIGS, DEAD_LETTER_TOPIC, HEADER_PREFIX
from headrace.pipeline.loading import load
from headrace.pipeline.quality.dead_letters import LetterTable
from headrace.pipeline.quality.letters import Letter, Wanted
from headrace.pipeline.quality.resending import resend
from headrace.pipeline.runner.backfill import Span, backfill
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.warehouse.storage import location_of
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError

pytestmark = pytest.mark.spark

LETTER_LIMIT = 50_000

FILE = """
from pyspark.sql import functions as F
from headrace.pipeline import expect, source, table, topic

@expect("known", "page <> '{secret}'", action="quarantine")
@source("{topic}", schema="event_id string, page string, visitor string", event_id="event_id")
def views(records):
    return records

@table(key=["page"], merge={"views": "sum"})
def pages(views):
    return views.groupBy("page").agg(F.count("*").alias("views"))

@table(key=["visitor"], merge={"views": "sum"})
def visitors(views):
    number = F.col("visitor").{cast}("int")
    return views.groupBy(number.alias("visitor")).agg(F.count("*").alias("views"))

@topic("{out}", key="page")
def announced(views):
    return views.select("page", F.expr("repeat(page, if(page = '/long', 300000, 1))").alias("text"))
"""


class Site:
    def __init__(self, spark: Any, topics: Any, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.topic = topics.create("views", 1)
        self.out = topics.create("out")
        self.file = directory / f"{self.topic.replace('-', '_')}.py"
        self.settings = RunSettings(
            directory / "warehouse", {"kafka.bootstrap.servers": topics.bootstrap}, once=True
        )

    def write(self, secret: str, cast: str = "cast") -> None:
        text = textwrap.dedent(FILE)
        given = {"secret": secret, "cast": cast, "topic": self.topic, "out": self.out}
        for name, value in given.items():
            text = text.replace(f"{{{name}}}", value)
        self.file.write_text(text)

    def view(self, event_id: str, page: str, visitor: str) -> None:
        value = {"event_id": event_id, "page": page, "visitor": visitor}
        headers = [("h", b"1"), ("none", None)]
        self.topics.send(self.topic, [("k", json.dumps(value))], headers=headers)

    def run(self, **settings: Any) -> int:
        """The number of dead letters."""
        done = run([str(self.file)], self.spark, self.settings._replace(**settings))
        return sum(one.dead_letters for one in done)

    def rows(self, name: str) -> dict[Any, int]:
        (node,) = (node for node in load(str(self.file)).nodes if node.name == name)
        rows = job_table(node, self.settings).shown(self.spark).collect()
        return {row[0]: row[1] for row in rows}

    def letters(self) -> dict[str, Letter]:
        """By stage."""
        table = LetterTable(location_of(self.settings.warehouse), None)
        return {one.stage: one for one in table.read(Wanted(), with_content=True)}

    def resend(self, *letters: Letter) -> None:
        cluster = Cluster(ClientSettings(self.topics.bootstrap))
        try:
            resend(cluster, letters)
        finally:
            cluster.close()

    def in_topic(self) -> list[dict[str, bytes]]:
        """Our headers of all letters in the topic."""
        found = []
        for message in self.topics.read(DEAD_LETTER_TOPIC):
            headers = dict(message.headers())
            if headers.get(f"{HEADER_PREFIX}pipeline") == self.file.stem.encode():
                ours = {k.removeprefix(HEADER_PREFIX): v for k, v in headers.items()}
                found.append({**ours, "value": message.value()})
        return found


@pytest.fixture
def small_letters(topics: Any, spark: Any) -> Any:
    """The topic of dead letters accepts less than usual, until the test is over."""
    cluster = Cluster(ClientSettings(topics.bootstrap))
    try:
        cluster.create_topic(DEAD_LETTER_TOPIC, -1, DEAD_LETTER_CONFIGS)
    finally:
        cluster.close()

    def alter(limit: str) -> None:
        entry = ConfigEntry("max.message.bytes", limit, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", DEAD_LETTER_TOPIC, incremental_configs=[entry])
        (done,) = topics.admin.incremental_alter_configs([resource]).values()
        done.result(30)

    alter(str(LETTER_LIMIT))
    yield
    alter(DEAD_LETTER_CONFIGS["max.message.bytes"])


@pytest.fixture
def site(spark: Any, topics: Any, tmp_path: Path) -> Site:
    return Site(spark, topics, tmp_path)


def test_letters_are_in_a_topic_and_land_once_when_they_are_sent_again(site: Site) -> None:
    site.write(secret="/secret")
    site.view("1", "/a", "1")
    site.view("2", "/secret", "2")
    site.view("3", "/b", "nobody")  # visitors fails for it
    site.view("4", "/long", "4")  # the topic would refuse it
    site.topics.send(site.topic, [b"\xff{"])
    assert site.run() == 4
    assert site.rows("pages") == {"/a": 1, "/b": 1, "/long": 1}
    assert site.rows("visitors") == {1: 1, 4: 1}
    sent = sorted(json.loads(one.value())["page"] for one in site.topics.read(site.out))
    assert sent == ["/a", "/b"]

    letters = site.letters()
    assert set(letters) == {"decode", "expectation", "step", "sink"}
    step, known = letters["step"], letters["expectation"]
    assert (step.offset, step.sinks, step.attempt, step.key) == (2, "visitors", 0, b"k")
    assert (step.topic_id, step.headers) == (known.topic_id, (("h", b"1"), ("none", None)))
    assert "nobody" in step.reason and "max.message.bytes" in letters["sink"].reason
    in_topic = {one["stage"].decode(): one for one in site.in_topic()}
    assert len(in_topic) == len(site.in_topic()) == 4
    assert (in_topic["decode"]["value"], in_topic["decode"]["attempt"]) == (b"\xff{", b"0")
    assert in_topic["expectation"]["rule"] == b"known"
    assert in_topic["step"]["topicid"].decode() == step.topic_id
    assert (in_topic["step"]["partition"], in_topic["step"]["offset"]) == (b"0", b"2")

    # Corrected, and sent three times: twice before a run, once after it.
    site.write(secret="/other", cast="try_cast")
    for _ in range(2):
        site.resend(step, known, letters["decode"])
    assert site.run() == 1
    expected = {"/a": 1, "/b": 1, "/long": 1, "/secret": 1}, {1: 1, 2: 1, 4: 1, None: 1}
    assert (site.rows("pages"), site.rows("visitors")) == expected
    assert site.letters()["decode"].attempt == 1
    site.resend(step, known)
    assert site.run() == 0
    assert (site.rows("pages"), site.rows("visitors")) == expected
    assert len(site.topics.read(site.out)) == 3

    # Computed again from the topics, which hold the records and their retries.
    list(backfill(str(site.file), site.spark, site.settings, Span()))
    assert (site.rows("pages"), site.rows("visitors")) == expected
    assert site.run(reset=True) == 2
    assert (site.rows("pages"), site.rows("visitors")) == expected


def test_a_function_that_fails_for_many_records_stops_the_run(site: Site) -> None:
    site.write(secret="/secret")
    for number in range(12):
        site.view(str(number), "/a", "nobody")
    with pytest.raises(PipelineError, match=r"table visitors: .*for more than 10 records"):
        site.run()
    assert site.rows("pages") == {"/a": 12}


def test_text_that_is_not_utf8_is_a_dead_letter_with_its_bytes(site: Site) -> None:
    site.write(secret="/secret")
    site.view("1", "/é", "1")
    value = b'{"event_id": "2", "page": "/\xff\xfe", "visitor": "2"}'
    site.topics.send(site.topic, [value])
    assert site.run() == 1
    assert (site.rows("pages"), site.rows("visitors")) == ({"/é": 1}, {1: 1})
    letter = site.letters()["decode"]
    assert (letter.offset, letter.value, letter.reason) == (
        1,
        value,
        "the value is not valid UTF-8",
    )


def test_values_of_ten_megabytes_and_times_of_1970_and_2100(
    spark: Any, topics: Any, tmp_path: Path
) -> None:
    site = Site(spark, topics, tmp_path)
    site.topic = topics.create("large", 1, max_message_bytes=20 << 20)
    site.file.write_text(
        textwrap.dedent(f"""
        from pyspark.sql import functions as F
        from headrace.pipeline import source, table

        @source("{site.topic}", schema="event_id string, at timestamp", event_time="at",
                event_id="event_id", late="deadletter")
        def views(records):
            return records

        @table(key=["year"], merge={{"views": "sum"}})
        def years(views):
            return views.groupBy(F.year("at").alias("year")).agg(F.count("*").alias("views"))
        """)
    )
    large = b"\xfe" * (10 << 20)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "message.max.bytes": 20 << 20})
    producer.produce(site.topic, large)
    assert producer.flush(60) == 0
    for number, year in enumerate((1970, 2100, 2026)):
        value = {"event_id": str(number), "at": f"{year}-03-01T12:00:00Z"}
        topics.send(site.topic, [json.dumps(value)], timestamp=1_772_366_400_000)
    assert site.run() == 3
    assert site.rows("years") == {2026: 1}
    letters = site.letters()
    assert {stage: one.offset for stage, one in letters.items()} == {
        "decode": 0,
        "late": 1,
        "event-time": 2,
    }
    assert letters["decode"].value == large
    (decode,) = (one for one in site.in_topic() if one["stage"] == b"decode")
    assert decode["value"] == large


def test_a_letter_that_is_too_large_for_its_topic_stops_nothing(
    site: Site, small_letters: Any
) -> None:
    site.write(secret="/secret")
    site.view("1", "/a", "1")
    large = b"\xff" * LETTER_LIMIT
    site.topics.send(site.topic, [("k", large)], headers=[("h", b"1")])
    site.topics.send(site.topic, [("k" * LETTER_LIMIT, b"\xff{")])
    site.topics.send(site.topic, [b"\xff{"])
    site.view("2", "/b", "2")
    assert site.run() == 3
    assert site.rows("pages") == {"/a": 1, "/b": 1}
    found = {int(one["offset"]): one for one in site.in_topic()}
    assert set(found) == {1, 2, 3}
    assert (found[1]["value"], found[1]["omitted"], found[1]["h"]) == (None, b"50000", b"1")
    assert (found[2]["value"], int(found[2]["omitted"]) > LETTER_LIMIT) == (None, True)
    assert found[3]["value"] == b"\xff{" and "omitted" not in found[3]
    assert {found[n]["topic"].decode() for n in (1, 2)} == {site.topic}
    table = LetterTable(location_of(site.settings.warehouse), None)
    whole = {one.offset: one for one in table.read(Wanted(), with_content=True)}
    assert whole[1].value == large and whole[2].key == b"k" * LETTER_LIMIT
