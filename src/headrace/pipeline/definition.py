"""The decorators of a pipeline file: ``source``, ``step``, ``table``, ``topic`` and others.

A decorator returns its function unchanged, with the declaration in the attribute ``declared``. So
every function of a pipeline file remains a plain function from DataFrames to a DataFrame, for
tests, notebooks and jobs of one's own. Wrong options are not refused here: ``headrace pipeline
plan`` shows all mistakes of a file together.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

Kind = Literal["source", "step", "table", "topic", "example"]
Function = TypeVar("Function", bound=Callable[..., Any])


class Decorator(Protocol):
    def __call__(self, function: Function, /) -> Function: ...


DEFAULT_TRIGGER = "10 seconds"
DEFAULT_LATENESS = "10 minutes"
_ATTRIBUTE = "declared"
_RULES = "expected"


class Declared(NamedTuple):
    """What a decorator says about its function."""

    kind: Kind
    topic: str = ""  # of a source or topic
    options: Mapping[str, Any] = {}
    unknown: tuple[str, ...] = ()  # names of options that do not exist


class Rule(NamedTuple):
    """What is expected of every row that a function returns."""

    name: str
    sql: str  # true for a good row
    action: str  # warn, quarantine, fail
    line: int = 0  # of the file
    unknown: tuple[str, ...] = ()


def source(
    topic: str,
    *,
    schema: str,
    event_time: str = "",
    event_id: str = "",
    lateness: str = DEFAULT_LATENESS,
    late: str = "recompute",
    **unknown: object,
) -> Decorator:
    """The JSON values of a topic as rows.

    ``schema`` is DDL. Rows with an ``event_id`` that came before are dropped. A record whose
    ``event_time`` is more than ``lateness`` before its Kafka timestamp is late: ``recompute``
    counts it in its window, ``deadletter`` sends it to the dead letters, ``drop`` only counts it.
    A field ``_arrived timestamp`` of the schema is that timestamp.
    """
    options = {
        "schema": schema,
        "event_time": event_time,
        "event_id": event_id,
        "lateness": lateness,
        "late": late,
    }
    return _declare(Declared("source", topic, options, tuple(unknown)))


def step(function: Function) -> Function:
    """Rows that other functions use. A step that several use is computed once per batch."""
    return _mark(function, Declared("step"))


def table(
    *,
    key: Sequence[str],
    merge: Mapping[str, str] | None = None,
    window: str = "",
    trigger: str = DEFAULT_TRIGGER,
    schema: str = "",
    **unknown: object,
) -> Decorator:
    """A Delta table with one row per ``key``.

    ``merge`` maps columns to the rule that joins the values of several batches: ``sum``, ``min``,
    ``max``, ``hll`` or ``kll``. Without it the row of the newest batch replaces the one before,
    and a true ``_deleted`` removes it. ``schema`` is needed by a table that functions read.

    ``window`` is the width of the window that a time in the key is the start of. The function then
    gets all events of the windows that a batch touches, for results that do not merge.
    """
    options = {
        "key": key,
        "merge": merge or {},
        "window": window,
        "trigger": trigger,
        "schema": schema,
    }
    return _declare(Declared("table", "", options, tuple(unknown)))


def topic(
    name: str,
    *,
    key: str,
    trigger: str = DEFAULT_TRIGGER,
    compacted: bool = False,
    **unknown: object,
) -> Decorator:
    """A topic of JSON values. A true ``_deleted`` sends a record without a value."""
    options = {"key": key, "trigger": trigger, "compacted": compacted}
    return _declare(Declared("topic", name, options, tuple(unknown)))


def expect(name: str, sql: str, action: str = "warn", **unknown: object) -> Decorator:
    """A rule for the rows of a source, step, table or topic: ``sql`` is true for each.

    Rows for which it is false or null are counted, and with ``warn`` pass. ``quarantine`` makes
    them dead letters; ``fail`` stops the pipeline before anything of the batch is written.
    """
    frame = inspect.currentframe()
    line = frame.f_back.f_lineno if frame and frame.f_back else 0
    rule = Rule(name, sql, action, line, tuple(unknown))

    def add(function: Function) -> Function:
        # Decorators apply from the lowest up; rules are in the order of the file.
        function.__dict__[_RULES] = (rule, *rules_of(function))
        return function

    return add


def example(function: Function) -> Function:
    """A test of the file: the function returns given and expected rows.

    Given rows are values by source, or a list of such mappings, one for each batch. Expected rows
    are by table or topic function, and may leave out columns.
    """
    return _mark(function, Declared("example"))


def declared(function: object) -> Declared | None:
    """What a decorator said about this function; None for anything else."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Declared) else None


def rules_of(function: object) -> tuple[Rule, ...]:
    """What ``expect`` said about this function."""
    found = getattr(function, _RULES, ())
    return found if isinstance(found, tuple) else ()


def _declare(what: Declared) -> Decorator:
    return lambda function: _mark(function, what)


def _mark(function: Function, what: Declared) -> Function:
    function.__dict__[_ATTRIBUTE] = what
    return function
