"""The watches of one session: set by reads, fired once by the writes that touch a node."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from headrace.coordination.tree import Watch, parent_of


class Aspect(Enum):
    NODE = "node"  # it exists, and its value
    CHILDREN = "children"


class Touch(NamedTuple):
    """What a write changed, and what a watch waits for."""

    aspect: Aspect
    path: str


def created(path: str) -> list[Touch]:
    return [Touch(Aspect.NODE, path), Touch(Aspect.CHILDREN, parent_of(path))]


def changed(path: str) -> list[Touch]:
    return [Touch(Aspect.NODE, path)]


def deleted(path: str) -> list[Touch]:
    return [
        Touch(Aspect.NODE, path),
        Touch(Aspect.CHILDREN, path),
        Touch(Aspect.CHILDREN, parent_of(path)),
    ]


class Watches:
    def __init__(self) -> None:
        # Inner dicts are ordered sets: a callback set twice fires once, in the order set.
        self._by_touch: dict[Touch, dict[Watch, None]] = {}

    def add(self, aspect: Aspect, path: str, watch: Watch) -> None:
        self._by_touch.setdefault(Touch(aspect, path), {})[watch] = None

    def fire(self, touched: Iterable[Touch]) -> list[tuple[Watch, str]]:
        """Remove the watches on ``touched``; returns the calls to make."""
        calls = {
            (watch, touch.path): None
            for touch in touched
            for watch in self._by_touch.pop(touch, ())
        }
        return list(calls)
