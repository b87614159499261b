"""Stand-in for the decorators of ``headrace.pipeline``, until these exist."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Declared:
    kind: str
    topic: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def _mark(function: Callable[..., Any], declared: Declared) -> Callable[..., Any]:
    function.__dict__["declared"] = declared
    return function


def source(topic: str, **options: Any) -> Decorator:
    return lambda function: _mark(function, Declared("source", topic, options))


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    return _mark(function, Declared("step"))


def table(**options: Any) -> Decorator:
    return lambda function: _mark(function, Declared("table", "", options))


def topic(name: str, **options: Any) -> Decorator:
    return lambda function: _mark(function, Declared("topic", name, options))
