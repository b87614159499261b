"""What changed in a pipeline file since its last run, and what each change requires. Pure.

The checkpoint of a query holds the offsets of its topics and the IDs of recent events; a table
holds rows that merge by its key. A change that makes either wrong is refused, unless the user says
where to go on (``--from``), which starts checkpoints over and keeps the rows, or starts everything
over (``--reset``).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from headrace.pipeline.graph import Node, Query

Requires = Literal["", "from", "reset"]
Declaration = Mapping[str, Any]


class Change(NamedTuple):
    text: str
    requires: Requires = ""


def declaration(
    nodes: Sequence[Node],
    queries: Sequence[Query],
    columns: Mapping[str, Mapping[str, str]],
    code: Mapping[str, str],
) -> dict[str, Any]:
    """What is recorded of a file. ``columns`` and ``code`` are by function."""
    query_of = {sink: query.name for query in queries for sink in query.sinks}
    found: dict[str, Any] = {"source": {}, "step": {}, "table": {}, "topic": {}}
    for node in nodes:
        entry: dict[str, Any] = dict(node.declared.options)
        if node.declared.topic:
            entry["topic"] = node.declared.topic
        if node.kind == "table":
            entry["key"], entry["merge"] = list(entry["key"]), dict(entry["merge"])
            entry["columns"] = dict(columns.get(node.name, {}))
        if node.is_sink:
            entry["query"] = query_of.get(node.name, "")
        entry["code"] = hashlib.sha256(code.get(node.name, "").encode()).hexdigest()[:16]
        found[node.kind][node.name] = entry
    by_name = {node.name: node for node in nodes}
    found["query"] = {
        query.name: {
            "topics": sorted(by_name[name].declared.topic for name in query.sources),
            "deduplicates": any(by_name[name].option("event_id") for name in query.sources),
        }
        for query in queries
    }
    return found


def changes(before: Declaration, after: Declaration) -> list[Change]:
    """In the order of what they concern: sources, steps, tables, topics, queries."""
    found = [*_of_sources(before["source"], after["source"])]
    found += _of_code("step", before["step"], after["step"])
    found += _of_tables(before["table"], after["table"])
    found += _of_topics(before["topic"], after["topic"])
    found += _of_queries(before["query"], after["query"])
    return found


def _of_sources(before: Declaration, after: Declaration) -> Iterator[Change]:
    yield from _added_and_removed("source", before, after)
    for name in (name for name in after if name in before):
        old, new = before[name], after[name]
        for option in sorted((old.keys() | new.keys()) - {"code", "topic"}):
            if old.get(option) != new.get(option):
                yield Change(
                    f"source {name}: {option} was {old.get(option)!r} and is "
                    f"{new.get(option)!r}; rows from now on follow it"
                )
    yield from _of_code("source", before, after)


def _of_code(kind: str, before: Declaration, after: Declaration) -> list[Change]:
    return [
        Change(f"{kind} {name}: its code changed; rows from now on follow it")
        for name in after
        if name in before and before[name]["code"] != after[name]["code"]
    ]


def _of_tables(before: Declaration, after: Declaration) -> Iterator[Change]:
    yield from _added_and_removed("table", before, after)
    for name in (name for name in after if name in before):
        old, new = before[name], after[name]
        for option in ("key", "merge"):
            if old[option] != new[option]:
                yield Change(
                    f"table {name}: {option} was {old[option]!r} and is {new[option]!r}; its rows "
                    "would not merge",
                    "reset",
                )
        if old.get("window", "") != new["window"]:
            yield Change(
                f"table {name}: window was {old.get('window', '')!r} and is {new['window']!r}; "
                "windows that are touched from now on follow it"
            )
        for column in dict.fromkeys((*old["columns"], *new["columns"])):
            was, is_now = old["columns"].get(column), new["columns"].get(column)
            if was is None:
                yield Change(f"table {name}: new column {column} {is_now}, null in older rows")
            elif was != is_now:
                yield Change(
                    f"table {name}: column {column} was {was} and is {is_now or 'gone'}", "reset"
                )
        yield from _moved("table", name, old, new)
    yield from _of_code("table", before, after)


def _of_topics(before: Declaration, after: Declaration) -> Iterator[Change]:
    yield from _added_and_removed("topic", before, after)
    for name in (name for name in after if name in before):
        old, new = before[name], after[name]
        for option in ("topic", "key", "compacted"):
            if old[option] != new[option]:
                yield Change(f"topic {name}: {option} was {old[option]!r} and is {new[option]!r}")
        yield from _moved("topic", name, old, new)
    yield from _of_code("topic", before, after)


def _moved(kind: str, name: str, old: Declaration, new: Declaration) -> Iterator[Change]:
    if old["query"] != new["query"]:
        yield Change(
            f"{kind} {name}: its query was {old['query']} and is {new['query']}, which is at other "
            "offsets",
            "from",
        )


def _of_queries(before: Declaration, after: Declaration) -> Iterator[Change]:
    for name in (name for name in after if name in before):
        old, new = before[name], after[name]
        gone = [topic for topic in old["topics"] if topic not in new["topics"]]
        if gone:
            yield Change(f"query {name}: no longer reads {', '.join(gone)}", "from")
        fresh = [topic for topic in new["topics"] if topic not in old["topics"]]
        if fresh:
            yield Change(f"query {name}: reads {', '.join(fresh)} too, from the beginning")
        if old["deduplicates"] != new["deduplicates"]:
            yield Change(
                f"query {name}: {'drops' if new['deduplicates'] else 'no longer drops'} repeated "
                "events, so its state changes",
                "from",
            )


def _added_and_removed(kind: str, before: Declaration, after: Declaration) -> Iterator[Change]:
    for name in (name for name in after if name not in before):
        hint = "; it starts where its query is, see backfill" if kind == "table" else ""
        yield Change(f"{kind} {name}: new{hint}")
    for name in (name for name in before if name not in after):
        hint = "; its rows stay" if kind == "table" else ""
        yield Change(f"{kind} {name}: removed{hint}")
