"""Finds the mistakes of a pipeline file that show in its columns, by calling it with no rows.

Spark resolves names and types when a function is called, before any row is read. Every function
is called with empty inputs, and the columns of its result are checked against its declaration.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.model.spelling import did_you_mean
from headrace.pipeline.calling import call
from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.graph import RESERVED_COLUMNS, Mistake, Node, mistakes
from headrace.pipeline.rules import RECORD, RECORD_FIELD, rule_mistakes
from headrace.pipeline.tables import DELETED
from headrace.spark.ddl import parse_fields
from headrace.spark.failures import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PRECISION_MAX = 38  # of a decimal
_TIMES = (TimestampType, TimestampNTZType)


def analyze(nodes: Sequence[Node], spark: "SparkSession") -> dict[str, StructType]:
    """The columns of every function by name. Raises BadPipeline with all mistakes."""
    found = mistakes(nodes) + ddl_mistakes(nodes)
    if found:
        raise BadPipeline(found)
    analysis = _Analysis(nodes, spark)
    for node in nodes:
        analysis.result(node)
    if analysis.mistakes:
        raise BadPipeline(sorted(set(analysis.mistakes)))
    return analysis.schemas


def ddl_mistakes(nodes: Sequence[Node]) -> list[Mistake]:
    """Mistakes in the schemas of sources and tables. Needs no session."""
    found: list[Mistake] = []
    for node in nodes:
        text = node.declared.options.get("schema")
        if node.kind != "source" and not text:
            continue
        try:
            schema = parse_fields(str(text))
        except BadOption as wrong:
            found.append(node.mistake(f"schema: {str(wrong).removeprefix('value.schema: ')}"))
            continue
        if node.kind == "source":
            found += _source_mistakes(node, schema)
    return found


def _source_mistakes(node: Node, schema: StructType) -> list[Mistake]:
    found = []
    for option in ("event_time", "event_id"):
        name = node.option(option)
        if name and name not in schema.fieldNames():
            near = did_you_mean(name, schema.fieldNames())
            names = ", ".join(schema.fieldNames())
            found.append(
                node.mistake(f"{option} is {name!r}{near}; the columns of the schema are {names}")
            )
        elif name and option == "event_time" and not isinstance(schema[name].dataType, _TIMES):
            kind = schema[name].dataType.simpleString()
            found.append(node.mistake(f"event_time {name!r} is {kind}; use a timestamp"))
    return found


class _Analysis:
    def __init__(self, nodes: Sequence[Node], spark: "SparkSession") -> None:
        self._nodes = {node.name: node for node in nodes}
        self._spark = spark
        self.schemas: dict[str, StructType] = {}
        self.mistakes: list[Mistake] = []
        self._failed: set[str] = set()
        self._open: list[str] = []

    def result(self, node: Node) -> StructType | None:
        """The columns of a result; None if it has mistakes, which are collected."""
        if node.name in self.schemas or node.name in self._failed:
            return self.schemas.get(node.name)
        self._open.append(node.name)
        try:
            schema = self._called(node)
        except BadPipeline as bad:
            self.mistakes += [one for one in bad.mistakes if isinstance(one, Mistake)]
            schema = None
        self._open.pop()
        if schema is None:
            self._failed.add(node.name)
            return None
        found = _result_mistakes(node, schema)
        self.mistakes += found
        self.schemas[node.name] = schema
        return schema

    def _called(self, node: Node) -> StructType | None:
        inputs: dict[str, DataFrame] = {}
        for parameter in node.parameters:
            schema = self._input(node, parameter)
            if schema is None:
                return None
            inputs[parameter] = self._spark.createDataFrame([], schema)
        rows = call(node, inputs)
        self.mistakes += rule_mistakes(node, rows)
        return rows.drop(RECORD).schema

    def _input(self, node: Node, parameter: str) -> StructType | None:
        if node.kind == "source":
            fields = parse_fields(node.option("schema"))
            return StructType([*fields, RECORD_FIELD]) if node.rules else fields
        given = self._nodes[parameter]
        if given.kind != "table":
            return self.result(given)
        if given.option("schema"):
            return parse_fields(given.option("schema"))
        if parameter in self._open:
            raise BadPipeline(
                [
                    given.mistake(
                        f"{node.name} reads it before its columns are known; give schema='…'"
                    )
                ]
            )
        schema = self.result(given)
        return schema and StructType([field for field in schema if field.name != DELETED])


def _result_mistakes(node: Node, schema: StructType) -> list[Mistake]:
    names = schema.fieldNames()
    found = [
        node.mistake(f"column {name!r} is there twice")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if node.kind == "topic" and node.option("key") not in names:
        found.append(_no_column(node, "key", node.option("key"), names))
    if node.kind == "table":
        found += _table_mistakes(node, schema)
    return found


def _table_mistakes(node: Node, schema: StructType) -> list[Mistake]:
    names = schema.fieldNames()
    key, merge = node.option("key"), node.option("merge")
    found = [_no_column(node, "key", name, names) for name in key if name not in names]
    found += [_no_column(node, "merge", name, names) for name in merge if name not in names]
    for field in schema:
        kind, rule = field.dataType, merge.get(field.name)
        if field.name in RESERVED_COLUMNS and field.name != DELETED:
            found.append(node.mistake(f"column {field.name!r} has a name that the runner uses"))
        elif isinstance(kind, NullType):
            found.append(node.mistake(f"column {field.name!r} has no type; cast it"))
        elif merge and rule is None and field.name not in key:
            found.append(node.mistake(f"column {field.name!r} is neither in key nor in merge"))
        elif rule in ("hll", "kll") and not isinstance(kind, BinaryType):
            sketch = "hll_sketch_agg" if rule == "hll" else "kll_sketch_agg_double"
            found.append(
                node.mistake(f"merge of {field.name!r} is {rule!r}, which needs {sketch}(…)")
            )
        elif rule == "sum" and not _can_grow(kind):
            text = f"merge of {field.name!r} is 'sum' of {kind.simpleString()}; cast it to "
            found.append(node.mistake(f"{text}bigint, double or decimal(38, …)"))
    if node.option("window"):
        known = [name for name in key if name in names]
        if time_column(schema, known) is None:
            found.append(node.mistake("has a window, so a column of its key must be a time"))
        if DELETED in names:
            found.append(node.mistake(f"has a window, which finds deleted rows: drop {DELETED!r}"))
    return found + _declared_mistakes(node, schema)


def _can_grow(kind: DataType) -> bool:
    """Whether a sum has the type of its parts, so that merged rows fit the table."""
    if isinstance(kind, DecimalType):
        return kind.precision == _PRECISION_MAX
    return isinstance(kind, LongType | DoubleType)


def _declared_mistakes(node: Node, schema: StructType) -> list[Mistake]:
    """A declared schema promises what the function returns, in any order."""
    if not node.option("schema"):
        return []
    given = {field.name: field.dataType.simpleString() for field in schema}
    given.pop(DELETED, None)
    promised = {
        field.name: field.dataType.simpleString() for field in parse_fields(node.option("schema"))
    }
    found = []
    for name in dict.fromkeys((*promised, *given)):
        if given.get(name) != promised.get(name):
            found.append(
                node.mistake(
                    f"column {name!r} is {promised.get(name, 'missing')} in its schema and "
                    f"{given.get(name, 'missing')} in what the function returns"
                )
            )
    return found


def _no_column(node: Node, option: str, name: str, names: Sequence[str]) -> Mistake:
    near = did_you_mean(name, names)
    return node.mistake(f"{option} names {name!r}{near}; the columns are {', '.join(names)}")


def time_column(schema: StructType, key: Sequence[str]) -> str | None:
    """The column of a key that says when; None if there is none."""
    for name in key:
        if isinstance(schema[name].dataType, (*_TIMES, DateType)):
            return name
    return None


def described(schema: StructType) -> dict[str, str]:
    """Columns and types, as plans print and record them."""
    return {field.name: field.dataType.simpleString() for field in schema}
