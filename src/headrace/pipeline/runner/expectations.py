"""The rows of a function against its rules: counted, quarantined, or reason to stop.

The result of a function with rules is kept, so that every reader of the batch sees the same rows,
and one aggregation counts all its rules. This happens before anything of the batch is written.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.pipeline.definition import Rule
from headrace.pipeline.errors import ExpectationFailed
from headrace.pipeline.graph import Node
from headrace.pipeline.rules import RECORD, holds_columns
from headrace.pipeline.runner.kept import Kept
from headrace.pipeline.runner.records import (
    ATTEMPT,
    RECORD_COLUMNS,
    SINKS,
    TOPIC_ID,
    as_letters,
)
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.bad_share import BadShare
from headrace.spark.source_schema import KAFKA_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STAGE = "expectation"
# How many rows of each function broke each of its rules.
EXPECTATIONS = "expectations"
EXPECTATIONS_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("function", pa.string()),
        ("rule", pa.string()),
        ("rows", pa.int64()),
        ("failed", pa.int64()),
    ]
)
_NO_RECORD = -1  # the partition of a letter that is a row, of no topic


class Verdict(NamedTuple):
    """The rows of one function in one batch."""

    node: Node
    rows: int
    quarantined: int
    failed: Mapping[str, int]  # rows by rule
    first: Mapping[str, Any]  # row or record, by rule that stops the pipeline

    def check(self) -> None:
        """Raises ExpectationFailed if a rule says so."""
        for rule in self.node.rules:
            if rule.action == "fail" and self.failed[rule.name]:
                raise ExpectationFailed(
                    f"{self.node.rule_mistake(rule, rule.sql)} is not true for "
                    f"{self.failed[rule.name]:,} of {self.rows:,} rows, first for "
                    f"{self._first(rule)}. Nothing of this batch was written. Correct the rows in "
                    "a function before this rule, or change its action"
                )

    def check_share(self, share: BadShare, share_max: float) -> None:
        """Raises ExpectationFailed if too many rows of the newest batches are bad."""
        judged = share.too_many(self.quarantined, self.rows)
        if judged is not None:
            told = [f"{name} {count:,}" for name, count in self.failed.items() if count]
            text = f"{judged.bad:,} of {judged.total:,} rows would be quarantined"
            raise ExpectationFailed(
                f"{self.node.mistake(text)} ({', '.join(told)}), more than {share_max:.0%}. "
                "Nothing of this batch was written. Correct the rules or the producer, or allow "
                "more with --bad-max"
            )

    def _first(self, rule: Rule) -> str:
        first = self.first[rule.name]
        if self.node.kind != "source":
            return str(first)
        return f"{self.node.declared.topic}:{first['partition']}, offset {first['offset']}"


class Judged:
    """The result of a function with rules. ``rows`` lack the quarantined ones."""

    def __init__(self, node: Node, made: "DataFrame") -> None:
        columns = holds_columns(node)
        self._node = node
        self._columns = dict(zip(columns, node.rules, strict=True))
        self._values = [name for name in made.columns if name != RECORD]
        self._kept = Kept(made.withColumns(columns))
        quarantine = [F.col(name) for name, rule in self._quarantine()]
        self._passes = reduce(lambda one, other: one & other, quarantine, F.lit(True))
        self.rows: DataFrame = self._kept.rows.where(self._passes).select(
            *(F.col(f"`{name}`") for name in self._values)
        )

    def release(self) -> None:
        self._kept.release()

    def verdict(self) -> Verdict:
        """Count, in one aggregation."""
        offender = F.col(RECORD) if self._node.kind == "source" else self._json()
        counts = [F.count("*").alias("rows"), F.count_if(~self._passes).alias("quarantined")]
        for name, rule in self._columns.items():
            counts.append(F.count_if(~F.col(name)).alias(name))
            if rule.action == "fail":
                counts.append(F.min(F.when(~F.col(name), offender)).alias(f"{name}_first"))
        (found,) = self._kept.rows.agg(*counts).toArrow().to_pylist()
        return Verdict(
            self._node,
            found["rows"],
            found["quarantined"],
            {rule.name: found[name] for name, rule in self._columns.items()},
            {rule.name: found.get(f"{name}_first") for name, rule in self._columns.items()},
        )

    def letters(self, records: "DataFrame", batch: BatchName) -> "DataFrame":
        """The quarantined rows: their records, or for those of no source the rows as JSON."""
        why = F.coalesce(
            *(
                F.when(~F.col(name), _why(f"{self._node.name}: {rule.sql} is not true", rule))
                for name, rule in self._quarantine()
            )
        )
        bad = self._kept.rows.where(~self._passes)
        if self._node.kind == "source":
            place = [F.col(f"{RECORD}.{name}").alias(name) for name in ("partition", "offset")]
            # A source may make several rows of one record.
            places = bad.groupBy(*place).agg(F.min(why).alias("why"))
            here = records.where(F.col("topic") == self._node.declared.topic)
            letters = here.join(places, ["partition", "offset"])
        else:
            rows = bad.select(self._json().alias("_json"), why.alias("why"))
            letters = row_records(rows, self._node, F.col("_json"), batch)
        return as_letters(letters, F.lit(STAGE), F.col("why.reason"), rule=F.col("why.rule"))

    def _quarantine(self) -> list[tuple[str, Rule]]:
        return [one for one in self._columns.items() if one[1].action == "quarantine"]

    def _json(self) -> "Column":
        return F.to_json(F.struct(*(F.col(f"`{name}`") for name in self._values)))


def row_records(rows: "DataFrame", node: Node, value: "Column", batch: BatchName) -> "DataFrame":
    """Rows of a function, which are no records, with the columns of records."""
    # A name for the letter in place of an offset: the same when the batch runs again.
    mark = F.xxhash64(F.lit(batch.query), F.lit(batch.number), value)
    given = {
        "topic": F.lit(node.name),
        "partition": F.lit(_NO_RECORD),
        "offset": F.shiftrightunsigned(mark, 1),
        "value": value,
    }
    nothing = F.lit(None)
    return rows.withColumns(
        {
            **{name: given.get(name, nothing).cast(KAFKA_COLUMNS[name]) for name in RECORD_COLUMNS},
            ATTEMPT: F.lit(0),
            TOPIC_ID: nothing.cast("string"),
            SINKS: nothing.cast("string"),
        }
    )


def _why(reason: str, rule: Rule) -> "Column":
    return F.struct(F.lit(rule.name).alias("rule"), F.lit(reason).alias("reason"))


def expectations_table(settings: RunSettings) -> JobTable:
    rules = Rules(("pipeline", "function", "rule"), {"rows": "sum", "failed": "sum"})
    return JobTable(settings.table(EXPECTATIONS), rules)


def rule_counts(pipeline: str, verdicts: Iterable[Verdict]) -> pa.Table:
    """The counts of a batch, as rows of the table."""
    rows = [
        {
            "pipeline": pipeline,
            "function": verdict.node.name,
            "rule": rule,
            "rows": verdict.rows,
            "failed": failed,
        }
        for verdict in verdicts
        if verdict.rows
        for rule, failed in verdict.failed.items()
    ]
    return pa.Table.from_pylist(rows, schema=EXPECTATIONS_SCHEMA)
