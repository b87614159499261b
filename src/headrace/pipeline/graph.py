"""What a pipeline file declares, as a graph: its mistakes, its order, and its queries. Pure.

A parameter names an input: a source, a step or a table. A table that is an input has the rows from
before the batch, so an edge through a table is no dependency within a batch, and no cycle.

All tables and topics with the same trigger that share a source, or of which one reads the other,
are written by one query. So each topic is read once per trigger.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.model.spelling import did_you_mean
from headrace.pipeline.definition import Declared, Rule, rules_of

RULE_ACTIONS = ("warn", "quarantine", "fail")
LATE_ACTIONS = ("recompute", "deadletter", "drop")
MERGE_RULES = ("sum", "min", "max", "hll", "kll")
RESERVED_COLUMNS = ("_query", "_batch", "_written_at", "_deleted")
# Directories of a warehouse that the runner and the load use.
RESERVED_TABLES = ("raw", "reads", "expectations")
_UNIT_MS = {
    "ms": 1, "millisecond": 1, "s": 1000, "second": 1000, "m": 60_000, "min": 60_000,
    "minute": 60_000, "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000,
}  # fmt: skip


class Place(NamedTuple):
    file: str
    line: int


class Mistake(NamedTuple):
    place: Place
    text: str

    def __str__(self) -> str:
        file, line = self.place
        return f"{file}:{line}: {self.text}" if line else f"{file}: {self.text}"


class Node(NamedTuple):
    """One declared function."""

    name: str
    declared: Declared
    parameters: tuple[str, ...]
    place: Place
    function: Callable[..., Any]
    is_imported: bool = False

    @property
    def kind(self) -> str:
        return self.declared.kind

    @property
    def is_sink(self) -> bool:
        return self.kind in ("table", "topic")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return rules_of(self.function)

    def option(self, name: str) -> Any:
        return self.declared.options[name]

    def mistake(self, text: str) -> Mistake:
        return Mistake(self.place, f"{self.kind} {self.name}: {text}")

    def rule_mistake(self, rule: Rule, text: str) -> Mistake:
        place = self.place._replace(line=rule.line)
        return Mistake(place, f"{self.kind} {self.name}: rule {rule.name!r}: {text}")


class Query(NamedTuple):
    """What one streaming query reads and writes. Names of functions, in the order of the file."""

    name: str
    trigger_ms: int
    sources: tuple[str, ...]
    steps: tuple[str, ...]  # each after its inputs
    tables: tuple[str, ...]
    topics: tuple[str, ...]
    inputs: tuple[str, ...]  # tables that functions read, of this and other queries

    @property
    def sinks(self) -> tuple[str, ...]:
        """In the order in which a batch writes them: what topics tell is in the tables."""
        return (*self.tables, *self.topics)


def duration_ms(text: object) -> int | None:
    """Milliseconds of ``10 minutes`` or ``10s``; None for anything else."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]+)\s*", text) if isinstance(text, str) else None
    if found is None:
        return None
    unit = _UNIT_MS.get(found[2]) or _UNIT_MS.get(found[2].removesuffix("s"))
    return int(found[1]) * unit if unit else None


def mistakes(nodes: Sequence[Node]) -> list[Mistake]:
    """All mistakes that show without Spark, in the order of the file."""
    by_name = {node.name: node for node in nodes}
    found: list[Mistake] = []
    for node in nodes:
        for name in node.declared.unknown:
            known = did_you_mean(name, node.declared.options)
            names = ", ".join(node.declared.options)
            found.append(node.mistake(f"there is no option {name!r}{known}; use {names}"))
        if node.is_imported and node.is_sink:
            found.append(
                node.mistake("belongs to another file; only sources and steps may be imported")
            )
        found += _CHECKS[node.kind](node)
        found += _rule_mistakes(node)
        found += _input_mistakes(node, by_name)
    found += _repeated(nodes)
    cycle = find_cycle(by_name)
    if cycle:
        names = " -> ".join([*cycle, cycle[0]])
        found.append(by_name[cycle[0]].mistake(f"is its own input: {names}"))
    elif not any(node.is_sink for node in nodes) and nodes:
        found.append(Mistake(nodes[0].place, "the file declares no table and no topic"))
    else:
        for node in nodes:
            if node.is_sink and not sources_of(node.name, by_name) and not _broken(node, by_name):
                found.append(node.mistake("has no source among its inputs"))
            found += _window_input_mistakes(node, by_name)
    return found


def _broken(node: Node, by_name: Mapping[str, Node]) -> bool:
    return not node.parameters or any(name not in by_name for name in node.parameters)


def _input_mistakes(node: Node, by_name: Mapping[str, Node]) -> list[Mistake]:
    if node.kind == "source":
        if len(node.parameters) != 1:
            return [node.mistake("takes one parameter, the records of its topic")]
        return []
    found = []
    for name in node.parameters:
        known = by_name.get(name)
        if known is None:
            near = did_you_mean(name, by_name)
            found.append(node.mistake(f"the input {name!r} is not declared{near}"))
        elif known.kind == "topic":
            found.append(
                node.mistake(f"the input {name!r} is a topic; declare a source that reads it")
            )
    if not node.parameters:
        found.append(node.mistake("has no parameter, so it has no input"))
    return found


def _rule_mistakes(node: Node) -> list[Mistake]:
    found, names = [], list[str]()
    for rule in node.rules:
        for name in rule.unknown:
            found.append(node.rule_mistake(rule, f"there is no option {name!r}; use action"))
        if rule.action not in RULE_ACTIONS:
            text = f"action is {rule.action!r}; use {', '.join(RULE_ACTIONS)}"
            found.append(node.rule_mistake(rule, text))
        given: dict[str, object] = {"name": rule.name, "sql": rule.sql}
        for what, value in given.items():
            if not isinstance(value, str) or not value.strip():
                found.append(node.rule_mistake(rule, f"{what} is {value!r}; use text"))
        if rule.name in names:
            found.append(node.rule_mistake(rule, "another rule has this name"))
        names.append(rule.name)
    return found


def _source_mistakes(node: Node) -> list[Mistake]:
    found = _topic_name_mistakes(node)
    late, lateness = node.option("late"), node.option("lateness")
    if late not in LATE_ACTIONS:
        found.append(node.mistake(f"late is {late!r}; use {', '.join(LATE_ACTIONS)}"))
    elif late != "recompute" and not node.option("event_time"):
        found.append(node.mistake(f"late is {late!r}, which needs event_time"))
    if duration_ms(lateness) is None:
        found.append(node.mistake(f"lateness is {lateness!r}; use a time like '10 minutes'"))
    return found


def _table_mistakes(node: Node) -> list[Mistake]:
    found = _trigger_mistakes(node)
    if node.name in RESERVED_TABLES or node.name.startswith("_"):
        found.append(node.mistake("has a name that the runner uses for its own tables; rename it"))
    key, merge = node.option("key"), node.option("merge")
    if isinstance(key, str) or not key or not all(isinstance(name, str) for name in key):
        found.append(node.mistake(f"key is {key!r}; use a list of columns"))
        key = ()
    if not isinstance(merge, Mapping):
        return [*found, node.mistake(f"merge is {merge!r}; use {{column: rule}}")]
    found += _window_mistakes(node)
    for column, rule in merge.items():
        if rule not in MERGE_RULES:
            found.append(
                node.mistake(f"merge of {column!r} is {rule!r}; use {', '.join(MERGE_RULES)}")
            )
        if column in key:
            found.append(node.mistake(f"merge names {column!r}, which is part of the key"))
    return found


def _window_mistakes(node: Node) -> list[Mistake]:
    window = node.option("window")
    if not window:
        return []
    if not duration_ms(window):
        return [node.mistake(f"window is {window!r}; use a time like '1 minute'")]
    if node.option("merge"):
        return [node.mistake("has merge and window; rows of whole windows need not merge")]
    return []


def _window_input_mistakes(node: Node, by_name: Mapping[str, Node]) -> list[Mistake]:
    """What a window is computed of: events with a time, and nothing that changes."""
    if node.kind != "table" or not node.option("window") or _window_mistakes(node):
        return []
    found = []
    for one in (by_name[name] for name in inputs_of(node.name, by_name)):
        if one.kind == "table":
            text = f"has a window, so it cannot read the table {one.name}, which changes"
            found.append(node.mistake(text))
        elif one.kind == "source" and not one.option("event_time"):
            text = f"has a window, so its source {one.name} needs event_time"
            found.append(node.mistake(text))
    return found


def _topic_mistakes(node: Node) -> list[Mistake]:
    found = _topic_name_mistakes(node) + _trigger_mistakes(node)
    if not isinstance(node.option("key"), str) or not node.option("key"):
        found.append(node.mistake(f"key is {node.option('key')!r}; use the name of a column"))
    return found


def _topic_name_mistakes(node: Node) -> list[Mistake]:
    name = node.declared.topic
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", str(name)):
        return []
    return [node.mistake(f"{name!r} is not a valid topic name")]


def _trigger_mistakes(node: Node) -> list[Mistake]:
    trigger = node.option("trigger")
    if duration_ms(trigger) is None:
        return [node.mistake(f"trigger is {trigger!r}; use a time like '10 seconds'")]
    return []


_CHECKS: dict[str, Callable[[Node], list[Mistake]]] = {
    "source": _source_mistakes,
    "step": lambda node: [],
    "table": _table_mistakes,
    "topic": _topic_mistakes,
}


def _repeated(nodes: Sequence[Node]) -> list[Mistake]:
    """Two functions for one topic would each see half of what they should."""
    found, seen = [], dict[tuple[str, str], Node]()
    for node in nodes:
        if node.kind in ("source", "topic"):
            first = seen.setdefault((node.kind, node.declared.topic), node)
            if first is not node:
                found.append(
                    node.mistake(f"{first.name} is declared for topic {node.declared.topic!r} too")
                )
    return found


def find_cycle(by_name: Mapping[str, Node]) -> list[str]:
    """The names on a cycle of steps; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        node = by_name.get(name)
        if name in done or node is None or node.kind != "step":
            return []
        for parameter in node.parameters:
            cycle = visit(parameter, [*path, name])
            if cycle:
                return cycle
        done.add(name)
        return []

    for name in by_name:
        cycle = visit(name, [])
        if cycle:
            return cycle
    return []


def inputs_of(name: str, by_name: Mapping[str, Node]) -> list[str]:
    """All that this function needs in a batch, inputs first, without itself; tables as leaves."""
    found: list[str] = []

    def visit(one: str) -> None:
        node = by_name.get(one)
        if node is None or one in found:
            return
        if node.kind == "step":
            for parameter in node.parameters:
                visit(parameter)
        found.append(one)

    for parameter in by_name[name].parameters if by_name[name].kind != "source" else ():
        visit(parameter)
    return found


def sources_of(name: str, by_name: Mapping[str, Node]) -> list[str]:
    return [one for one in inputs_of(name, by_name) if by_name[one].kind == "source"]


def queries(nodes: Sequence[Node]) -> list[Query]:
    """The queries of a file without mistakes, shortest trigger first."""
    by_name = {node.name: node for node in nodes}
    groups: dict[int, list[set[str]]] = {}
    for node in nodes:
        if not node.is_sink:
            continue
        trigger = duration_ms(node.option("trigger"))
        assert trigger is not None
        joined = {node.name, *inputs_of(node.name, by_name)}
        others = []
        for group in groups.get(trigger, []):
            if any(by_name[one].kind != "step" for one in group & joined):
                joined |= group
            else:
                others.append(group)
        groups[trigger] = [*others, joined]
    made = []
    for trigger in sorted(groups):
        single = len(groups[trigger]) == 1
        made += [_query(group, trigger, single, nodes, by_name) for group in groups[trigger]]
    return made


def _query(
    group: set[str],
    trigger_ms: int,
    is_single: bool,
    nodes: Sequence[Node],
    by_name: Mapping[str, Node],
) -> Query:
    def of_kind(kind: str, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if by_name[name].kind == kind)

    in_file = [node.name for node in nodes if node.name in group]
    # A table of another trigger may be in the group, because a function reads it.
    sinks = [
        name
        for name in in_file
        if by_name[name].is_sink and duration_ms(by_name[name].option("trigger")) == trigger_ms
    ]
    needed = list(dict.fromkeys(one for sink in sinks for one in inputs_of(sink, by_name)))
    name = duration_text(trigger_ms)
    if not is_single:
        name += f"-{sorted(sinks)[0]}"
    return Query(
        name,
        trigger_ms,
        of_kind("source", (one for one in in_file if one in needed)),
        of_kind("step", needed),
        of_kind("table", sinks),
        of_kind("topic", sinks),
        of_kind("table", needed),
    )


def duration_text(milliseconds: int) -> str:
    """``10s``, ``5m``: the shortest text of a duration."""
    for unit in ("h", "m", "s"):
        if milliseconds and milliseconds % _UNIT_MS[unit] == 0:
            return f"{milliseconds // _UNIT_MS[unit]}{unit}"
    return f"{milliseconds}ms"
