"""Decorators leave functions as they are, and note what they declare."""

from headrace import pipeline
from headrace.pipeline.definition import (
    declared,
    example,
    expect,
    rules_of,
    source,
    step,
    table,
    topic,
)


def test_a_decorated_function_is_the_same_function():
    def views(records):
        return records

    assert source("page-views", schema="page string")(views) is views
    assert views("rows") == "rows"
    found = declared(views)
    assert found is not None
    assert (found.kind, found.topic) == ("source", "page-views")
    assert found.options == {
        "schema": "page string",
        "event_time": "",
        "event_id": "",
        "lateness": "10 minutes",
        "late": "recompute",
    }


def test_what_each_decorator_declares():
    kinds = {
        step: "step",
        example: "example",
        table(key=["page"], merge={"views": "sum"}): "table",
        topic("alerts", key="client", compacted=True): "topic",
    }
    for decorate, kind in kinds.items():
        found = declared(decorate(lambda: None))
        assert found is not None and found.kind == kind


def test_unknown_options_are_noted_not_refused():
    def pages(views):
        return views

    found = declared(table(key=["page"], triger="1 second")(pages))
    assert found is not None and found.unknown == ("triger",)


def test_rules_are_in_the_order_of_the_file():
    @expect("has_page", "page is not null", action="quarantine")
    @step
    @expect("short", "length(page) < 10", wen="never")
    def pages(views):
        return views

    first, second = rules_of(pages)
    assert first[:3] == ("has_page", "page is not null", "quarantine")
    assert second[:3] == ("short", "length(page) < 10", "warn")
    assert (second.line - first.line, second.unknown) == (2, ("wen",))
    found = declared(pages)
    assert found is not None and found.kind == "step"
    assert pages("rows") == "rows"


def test_what_is_not_declared():
    assert rules_of(len) == ()
    assert declared(len) is None
    assert declared(None) is None


def test_a_pipeline_file_imports_the_decorators_from_the_package():
    assert pipeline.source is source
    assert pipeline.table is table
