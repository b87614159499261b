"""Calls a function of a pipeline file with DataFrames; text that it returns is SQL over them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.graph import Mistake, Node
from headrace.pipeline.loading import mistake_of
from headrace.pipeline.planned import Functions, PlainFunctions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def call(
    node: Node, inputs: "Mapping[str, DataFrame]", functions: Functions | None = None
) -> "DataFrame":
    """Call a function of the file; text is SQL over its parameters. Raises BadPipeline.

    ``functions`` may compute a part of the result at once, and raises what Spark raises then.
    """
    from pyspark.errors import AnalysisException
    from pyspark.errors.exceptions.captured import CapturedException

    def checked(**frames: "DataFrame") -> Any:
        from pyspark.sql import DataFrame

        made = node.function(**frames)
        if not isinstance(made, DataFrame | str):
            text = f"returns {type(made).__name__}; return a DataFrame or SQL text"
            raise BadPipeline([node.mistake(text)])
        return made

    try:
        return (functions or PlainFunctions()).call(node.name, checked, inputs)
    except BadPipeline:
        raise
    except Exception as failed:
        if isinstance(failed, CapturedException) and not isinstance(failed, AnalysisException):
            raise  # the rows, not the function
        raise BadPipeline([_named(node, mistake_of(failed, node.place))]) from failed


def _named(node: Node, mistake: Mistake) -> Mistake:
    return mistake._replace(text=f"{node.kind} {node.name}: {mistake.text}")
