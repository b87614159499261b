"""What changed since the last run, and what each change requires."""

import copy

import pytest

from headrace.pipeline.changes import changes, declaration
from headrace.pipeline.definition import declared, source, table, topic
from headrace.pipeline.graph import Node, Place, queries

COLUMNS = {"pages": {"page": "string", "views": "bigint"}}


def nodes(*, key=("page",), window="", trigger="10 seconds", event_id="id", lateness="10 minutes"):
    made = {
        "views": source("page-views", schema="id string", event_id=event_id, lateness=lateness),
        "clicks": source("clicks", schema="id string", event_id=event_id),
        "pages": table(key=key, merge={"views": "sum"}, window=window, trigger=trigger),
        "told": topic("told", key="page", trigger=trigger),
    }
    parameters = {"views": "records", "clicks": "records", "pages": "views", "told": "clicks"}
    found = []
    for name, decorate in made.items():
        what = declared(decorate(lambda: None))
        assert what is not None
        places = (parameters[name],) if name != "pages" else ("views", "clicks")
        found.append(Node(name, what, places, Place("site.py", 1), print))
    return found


def of(nodes, columns=COLUMNS, code=None):
    return declaration(nodes, queries(nodes), columns, code or {})


BEFORE = of(nodes())


def texts(after):
    return [(change.text, change.requires) for change in changes(BEFORE, after)]


def test_nothing_changed():
    assert texts(of(nodes())) == []


@pytest.mark.parametrize(
    ("after", "expected", "requires"),
    [
        (of(nodes(lateness="1 hour")), "lateness was '10 minutes' and is '1 hour'", ""),
        (of(nodes(key=("page", "day"))), "table pages: key was ['page'] and is ['page', 'day']",
         "reset"),
        (of(nodes(window="1 day")), "table pages: window was '' and is '1 day'", ""),
        (of(nodes(), {"pages": {**COLUMNS["pages"], "day": "date"}}), "table pages: new column day "
         "date, null in older rows", ""),
        (of(nodes(), {"pages": {"page": "string", "views": "int"}}), "table pages: column views "
         "was bigint and is int", "reset"),
        (of(nodes(), {"pages": {"page": "string"}}), "views was bigint and is gone", "reset"),
        (of(nodes(trigger="5 seconds")), "table pages: its query was 10s and is 5s", "from"),
        (of(nodes(event_id="")), "query 10s: no longer drops repeated events", "from"),
        (of(nodes(), code={"pages": "x"}), "table pages: its code changed", ""),
    ],
)  # fmt: skip
def test_a_change_and_what_it_requires(after, expected, requires):
    found = [one for one in texts(after) if expected in one[0]]
    assert [one[1] for one in found] == [requires]


def test_new_and_removed_functions():
    fewer = [node for node in nodes() if node.name != "told"]
    assert ("topic told: removed", "") in texts(of(fewer))
    back = [change.text for change in changes(of(fewer), BEFORE)]
    assert "topic told: new" in back
    empty = copy.deepcopy(BEFORE)
    del empty["table"]["pages"]
    assert [change.text for change in changes(empty, BEFORE)] == [
        "table pages: new; it starts where its query is, see backfill"
    ]


def test_topics_that_a_query_reads():
    fewer = copy.deepcopy(BEFORE)
    fewer["query"]["10s"]["topics"] = ["page-views"]
    assert ("query 10s: no longer reads clicks", "from") in texts(fewer)
    (more,) = changes(fewer, BEFORE)
    assert (more.text, more.requires) == (
        "query 10s: reads clicks too, from the beginning",
        "",
    )


def test_the_topic_of_a_sink():
    other = copy.deepcopy(BEFORE)
    other["topic"]["told"]["topic"] = "said"
    assert texts(other) == [("topic told: topic was 'told' and is 'said'", "")]
