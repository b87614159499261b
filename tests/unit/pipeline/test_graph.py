"""Mistakes, order and queries of what a pipeline file declares."""

import pytest

from headrace.pipeline.definition import Declared, declared, expect, source, step, table, topic
from headrace.pipeline.graph import (
    Mistake,
    Node,
    Place,
    duration_ms,
    duration_text,
    inputs_of,
    mistakes,
    queries,
)


def node(name, decorate, *parameters, line=1, is_imported=False):
    def function():
        raise AssertionError("not called")

    found = declared(decorate(function))
    assert found is not None
    return Node(name, found, parameters, Place("site.py", line), function, is_imported)


VIEWS = node("views", source("page-views", schema="page string"), "records")
CLICKS = node("clicks", source("clicks", schema="page string"), "records", line=2)
PAGES = node("pages", table(key=["page"]), "views", line=3)


def texts(*nodes):
    return [str(one) for one in mistakes(nodes)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 minutes", 600_000), ("1 second", 1000), ("500 ms", 500), ("90s", 90_000),
        ("2 hours", 7_200_000), ("1d", 86_400_000), ("soon", None), ("10", None), (10, None),
    ],
)  # fmt: skip
def test_durations(text, expected):
    assert duration_ms(text) == expected


def test_durations_as_text():
    assert [duration_text(one) for one in (500, 10_000, 300_000, 7_200_000)] == [
        "500ms", "10s", "5m", "2h",
    ]  # fmt: skip


def test_a_file_without_mistakes():
    assert texts(VIEWS, PAGES) == []


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (node("t", table(key=["page"]), "viewz"), "the input 'viewz' is not declared (did you mean "
         "views?)"),
        (node("t", table(key=["page"])), "has no parameter"),
        (node("t", table(key="page"), "views"), "key is 'page'; use a list of columns"),
        (node("t", table(key=["page"], merge={"n": "avg"}), "views"), "merge of 'n' is 'avg'; use "
         "sum, min, max, hll, kll"),
        (node("t", table(key=["page"], merge={"page": "sum"}), "views"), "part of the key"),
        (node("t", table(key=["page"], trigger="often"), "views"), "trigger is 'often'"),
        (node("t", table(key=["page"], merg={}), "views"), "there is no option 'merg' (did you "
         "mean merge?); use key, merge, window, trigger, schema"),
        (node("t", table(key=["page"], window="hour"), "views"), "window is 'hour'; use a time"),
        (node("t", table(key=["page"], window="1h", merge={"n": "sum"}), "views"), "has merge and "
         "window"),
        (node("t", table(key=["page"], window="1h"), "views"), "its source views needs event_time"),
        (node("t", table(key=["page"]), "views", is_imported=True), "belongs to another file"),
        (node("t", topic("a topic", key="page"), "views"), "'a topic' is not a valid topic name"),
        (node("t", topic("out", key=""), "views"), "key is ''; use the name of a column"),
        (node("t", source("t", schema="", late="ignore"), "records"), "late is 'ignore'; use "
         "recompute, deadletter, drop"),
        (node("t", source("t", schema="", lateness="1"), "records"), "lateness is '1'"),
        (node("t", source("t", schema="", late="drop"), "records"), "needs event_time"),
        (node("t", source("t", schema=""), "a", "b"), "takes one parameter"),
        (node("t", source("page-views", schema=""), "records"), "views is declared for topic"),
        (node("t", table(key=["page"]), "t"), "has no source among its inputs"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(wrong, expected):
    wrong = wrong._replace(place=Place("site.py", 7))
    (found,) = texts(VIEWS, PAGES, wrong)
    assert found.startswith(f"site.py:7: {wrong.kind} t: ") and expected in found


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([expect("r", "page > 1", "skip")], "action is 'skip'; use warn, quarantine, fail"),
        ([expect("r", " ")], "sql is ' '; use text"),
        ([expect("r", "page > 1", unless="x")], "there is no option 'unless'; use action"),
        ([expect("r", "page > 2"), expect("r", "page > 1")], "another rule has this name"),
    ],
)
def test_a_mistake_in_a_rule_is_named_with_the_line_of_the_rule(rules, expected):
    wrong = node("t", table(key=["page"]), "views")
    for decorate in reversed(rules):
        decorate(wrong.function)
    (found,) = texts(VIEWS, wrong)
    assert found == f"site.py:{wrong.rules[-1].line}: table t: rule 'r': {expected}"


@pytest.mark.parametrize("name", ["raw", "reads", "expectations", "_dead_letters"])
def test_a_table_has_no_name_of_the_runner(name):
    (found,) = texts(VIEWS, node(name, table(key=["page"]), "views"))
    assert f"table {name}: has a name that the runner uses" in found


def test_all_mistakes_are_found_together():
    bad = [node(f"t{n}", table(key=[], trigger="x"), "nothing", line=n) for n in (4, 5)]
    assert len(texts(VIEWS, PAGES, *bad)) == 6


def test_a_topic_is_no_input():
    out = node("out", topic("out", key="page"), "views")
    reads = node("t", table(key=["page"]), "out", "views")
    assert "declare a source that reads it" in texts(VIEWS, out, reads)[0]


def test_a_cycle_of_steps():
    one, two = node("one", step, "two", "views"), node("two", step, "one", line=9)
    assert texts(VIEWS, PAGES, one, two) == [
        "site.py:1: step one: is its own input: one -> two -> one"
    ]


def test_an_edge_through_a_table_is_no_cycle():
    changes = node("changes", step, "views", "members")
    members = node("members", table(key=["member"]), "changes")
    assert texts(VIEWS, changes, members) == []
    assert inputs_of("members", {n.name: n for n in (VIEWS, changes, members)}) == [
        "views", "members", "changes",
    ]  # fmt: skip


def test_a_file_needs_a_table_or_topic():
    assert texts(VIEWS) == ["site.py:1: the file declares no table and no topic"]


def test_a_mistake_without_a_line():
    assert str(Mistake(Place("nothing.py", 0), "no such file")) == "nothing.py: no such file"


# --- queries


def test_sinks_with_one_trigger_and_a_shared_source_are_one_query():
    days = node("days", table(key=["page"]), "views", "clicks")
    out = node("out", topic("out", key="page"), "views")
    (query,) = queries([VIEWS, CLICKS, PAGES, days, out])
    assert query.name == "10s"
    assert query.sources == ("views", "clicks")
    assert query.sinks == ("pages", "days", "out")


def test_sinks_without_a_shared_source_are_queries_of_their_own():
    clicked = node("clicked", table(key=["page"]), "clicks")
    first, second = queries([VIEWS, CLICKS, PAGES, clicked])
    assert (first.name, first.sources, first.tables) == ("10s-pages", ("views",), ("pages",))
    assert (second.name, second.sources) == ("10s-clicked", ("clicks",))


def test_a_sink_that_joins_two_queries():
    clicked = node("clicked", table(key=["page"]), "clicks")
    both = node("both", table(key=["page"]), "views", "clicks")
    (query,) = queries([VIEWS, CLICKS, PAGES, clicked, both])
    assert query.tables == ("pages", "clicked", "both")


def test_each_trigger_is_a_query_and_the_shortest_is_first():
    fast = node("fast", table(key=["page"], trigger="1 second"), "views", "pages")
    first, second = queries([VIEWS, PAGES, fast])
    assert (first.name, first.tables, first.inputs) == ("1s", ("fast",), ("pages",))
    assert (second.name, second.tables, second.inputs) == ("10s", ("pages",), ())


def test_steps_come_after_their_inputs():
    late = node("late", step, "early")
    early = node("early", step, "views")
    shown = node("shown", table(key=["page"]), "late")
    (query,) = queries([VIEWS, late, early, shown])
    assert query.steps == ("early", "late")


def test_a_node_knows_its_options():
    assert PAGES.option("key") == ["page"]
    assert Declared("step").options == {}
