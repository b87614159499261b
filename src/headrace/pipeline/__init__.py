"""From topics to tables: the warehouse load and pipeline files, on the Spark source and sink."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.pipeline.definition import example, expect, source, step, table, topic

__all__ = ["example", "expect", "source", "step", "table", "topic"]


def __getattr__(name: str) -> Any:
    """What pipeline files import; the load does without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.pipeline import definition

    return getattr(definition, name)
