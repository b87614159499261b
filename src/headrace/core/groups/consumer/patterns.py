"""Topics by regular expression: which topics each pattern of a shard's groups matches.

The syntax is RE2's, as in Kafka, because the broker runs patterns of clients: RE2 needs time in
proportion to the text, whatever the pattern. A pattern must match the whole name.
"""

from collections.abc import Callable

from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected

Matches = Callable[[str], object]  # truthy if it matches

# Over time clients may send any number of patterns; those in use are soon compiled again.
_PATTERN_COUNT_MAX = 1_000


class TopicPatterns:
    """Remembers the matches of each pattern and checks new topics only."""

    def __init__(self) -> None:
        self._metadata: ClusterMetadata | None = None
        self._names: frozenset[str] = frozenset()
        self._compiled: dict[str, Matches] = {}
        self._found: dict[
            str, frozenset[str]
        ] = {}  # same keys as ``_compiled``; subsets of ``_names``

    def check(self, pattern: str) -> None:
        """Raise Rejected(INVALID_REGULAR_EXPRESSION) unless RE2 accepts the pattern."""
        self._compile(pattern)

    def matching(self, pattern: str, metadata: ClusterMetadata) -> frozenset[str]:
        """The topics of ``metadata`` that the pattern matches; none if RE2 rejects the pattern."""
        if metadata is not self._metadata:
            self._look_at(metadata)
        found = self._found.get(pattern)
        if found is None:
            try:
                matches = self._compile(pattern)
            except Rejected:
                # Stored by a broker with another version of RE2.
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
            # Imported with the first pattern: most brokers never see one.
            import re2

            options = re2.Options()
            options.log_errors = False
            try:
                re2.compile(pattern, options=options)  # reports what is wrong; a Set does not
                # A Set of one pattern only answers yes or no, at a fifth of the cost of a match.
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
