"""Topics by regular expression: which names each pattern of a shard's groups matches now.

The patterns are RE2's, as in Kafka, because a client's pattern runs on the broker: RE2 takes time
in proportion to the text, whatever the pattern. A pattern has to match a whole name.
"""

from collections.abc import Callable

from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected

Matches = Callable[[str], object]  # true or not

# Clients may send any number of patterns over the years; those in use come back at once.
_PATTERN_COUNT_MAX = 1_000


class TopicPatterns:
    """Remembers what it found, and looks at new topics only."""

    def __init__(self) -> None:
        self._metadata: ClusterMetadata | None = None
        self._names: frozenset[str] = frozenset()
        self._compiled: dict[str, Matches] = {}
        self._found: dict[str, frozenset[str]] = {}  # for the keys of ``_compiled``, of ``_names``

    def check(self, pattern: str) -> None:
        """Rejected, with INVALID_REGULAR_EXPRESSION, unless RE2 takes it."""
        self._compile(pattern)

    def matching(self, pattern: str, metadata: ClusterMetadata) -> frozenset[str]:
        """The topics of ``metadata`` that the pattern names; none if RE2 does not take it."""
        if metadata is not self._metadata:
            self._look_at(metadata)
        found = self._found.get(pattern)
        if found is None:
            try:
                matches = self._compile(pattern)
            except Rejected:
                # Kept by a broker with another RE2.
                return frozenset()
            found = frozenset(name for name in self._names if matches(name))
            self._found[pattern] = found
        return found

    def _look_at(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        names = frozenset(metadata.topics)
        came, went = names - self._names, self._names - names
        if not came and not went:
            return
        self._names = names
        for pattern, found in self._found.items():
            matches = self._compiled[pattern]
            self._found[pattern] = (found - went) | {name for name in came if matches(name)}

    def _compile(self, pattern: str) -> Matches:
        compiled = self._compiled.get(pattern)
        if compiled is None:
            # Imported by the first pattern: most brokers never see one.
            import re2

            options = re2.Options()
            options.log_errors = False
            try:
                re2.compile(pattern, options=options)  # says what is wrong; a Set does not
                # A Set of one is asked for yes or no, which costs a fifth of a match object.
                alone = re2.Set.FullMatchSet(options)
                alone.Add(pattern)
                alone.Compile()
            except (re2.error, UnicodeEncodeError) as error:
                raise Rejected(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: "
                    f"{_text(error)}.",
                ) from None
            if len(self._compiled) >= _PATTERN_COUNT_MAX:
                self._compiled.clear()
                self._found.clear()
            compiled = self._compiled[pattern] = alone.Match
        return compiled


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
