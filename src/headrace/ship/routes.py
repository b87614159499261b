"""The topic of each event: the first rule that matches its file or its text. Pure."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from headrace.ship.events import compiled


class RuleInvalid(ValueError):
    """A rule that is not TOPIC=PATTERN."""


class Routes:
    """Topics by rule; ``default`` is the topic of events that match no rule."""

    def __init__(
        self, default: str, by_file: Sequence[str] = (), by_text: Sequence[str] = ()
    ) -> None:
        """Rules are texts TOPIC=GLOB (by file) and TOPIC=REGULAR-EXPRESSION (by text)."""
        self._default = default
        self._by_file = [_parsed(rule) for rule in by_file]
        rules = [_parsed(rule) for rule in by_text]
        self._by_text: list[tuple[str, Callable[[bytes], Any]]] = [
            (rule.topic, compiled(rule.pattern).search) for rule in rules
        ]
        topics = [default, *(rule.topic for rule in (*self._by_file, *rules))]
        self.topics = list(dict.fromkeys(topics))

    def of_file(self, path: str) -> str:
        """The topic of a file's events, unless their text decides."""
        for rule in self._by_file:
            if fnmatchcase(path, rule.pattern):
                return rule.topic
        return self._default

    def of_event(self, topic_of_file: str) -> Callable[[bytes], str] | None:
        """The topic of an event by its text; None if no rule looks at the text."""
        if not self._by_text:
            return None

        def topic_of(value: bytes) -> str:
            for topic, search in self._by_text:
                if search(value):
                    return topic
            return topic_of_file

        return topic_of


class _Rule(NamedTuple):
    topic: str
    pattern: str


def _parsed(rule: str) -> _Rule:
    topic, equals, pattern = rule.partition("=")
    if not equals or not topic or not pattern:
        raise RuleInvalid(f"rule {rule!r}: expected TOPIC=PATTERN")
    return _Rule(topic, pattern)
