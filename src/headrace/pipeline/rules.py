"""The rules of a function as columns of its rows, and the mistakes that Spark finds in them."""

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, LongType, StructField, StructType

from headrace.pipeline.graph import Mistake, Node

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The place of a row's record, in the rows of a source with rules.
RECORD = "_record"
RECORD_FIELD = StructField(
    RECORD, StructType([StructField("partition", IntegerType()), StructField("offset", LongType())])
)


def holds_columns(node: Node) -> "dict[str, Column]":
    """A column for each rule, in their order: whether it is true for the row. Null is not."""
    return {
        f"_holds_{number}": F.coalesce(F.expr(rule.sql), F.lit(False))
        for number, rule in enumerate(node.rules)
    }


def rule_mistakes(node: Node, rows: "DataFrame") -> list[Mistake]:
    """What is wrong with the rules of a function that returns such rows."""
    found = []
    for rule in node.rules:
        try:
            field = rows.select("*", F.expr(rule.sql)).schema[-1]
        except PySparkException as wrong:
            text = str(wrong).strip().split("\n")[0]
            found.append(node.rule_mistake(rule, text))
            continue
        if not isinstance(field.dataType, BooleanType):
            kind = field.dataType.simpleString()
            found.append(node.rule_mistake(rule, f"{rule.sql} is {kind}; use a condition"))
    if node.rules and node.kind == "source" and RECORD not in rows.columns:
        found.append(
            node.mistake(
                f"its rows have rules, and lose their column {RECORD!r}, which says where a row "
                "comes from; return it too, or move the rules to a step"
            )
        )
    return found
