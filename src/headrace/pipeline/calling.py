"""Calls a function of a pipeline file with DataFrames; text that it returns is SQL over them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.graph import Mistake, Node
from headrace.pipeline.loading import mistake_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def call(node: Node, inputs: "Mapping[str, DataFrame]") -> "DataFrame":
    """Call a function of the file; text is SQL over its parameters. Raises BadPipeline."""
    from pyspark.sql import DataFrame

    try:
        made = node.function(**inputs)
        if isinstance(made, str):
            return _sql(made, inputs)
    except Exception as failed:
        raise BadPipeline([_named(node, mistake_of(failed, node.place))]) from failed
    if not isinstance(made, DataFrame):
        raise BadPipeline(
            [node.mistake(f"returns {type(made).__name__}; return a DataFrame or SQL text")]
        )
    return made


def _named(node: Node, mistake: Mistake) -> Mistake:
    return mistake._replace(text=f"{node.kind} {node.name}: {mistake.text}")


def _sql(text: str, inputs: "Mapping[str, DataFrame]") -> "DataFrame":
    spark = next(iter(inputs.values())).sparkSession
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(text, None, **inputs) if "{" in text else spark.sql(text)
