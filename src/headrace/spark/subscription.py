"""Chooses the partitions that a query reads: by topic, by pattern, or one by one."""

import json
import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from headrace.client.cluster import TopicMetadata
from headrace.client.errors import Refused
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.failures import BadOption, refuse


class Subscription(NamedTuple):
    """Exactly one of topics, pattern and assigned is set. Only text and tuples: it is pickled."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()
    excluded: str = ""  # a topic that the pattern leaves out

    def without(self, dead_letter_topic: str) -> "Subscription":
        """The same without the topic for bad records, which would otherwise feed itself."""
        named = {"subscribe": self.topics, "assign": [place.topic for place in self.assigned]}
        for option, topics in named.items():
            if dead_letter_topic in topics:
                raise BadOption(
                    f"value.bad.topic is {dead_letter_topic!r}, which the option {option} names "
                    "too: the query would read its own bad records without end. Choose another "
                    "topic for bad records"
                )
        return self._replace(excluded=dead_letter_topic) if self.pattern else self

    def topics_metadata(self, cluster: Cluster) -> dict[str, TopicMetadata]:
        """The topics that exist now, with only the assigned partitions if some are assigned."""
        if self.pattern:
            found = {
                name: metadata
                for name, metadata in cluster.topics().items()
                if self._pattern_covers(name)
            }
        else:
            names = self.topics or tuple(dict.fromkeys(p.topic for p in self.assigned))
            found = cluster.topics(names)
        alive = {}
        for name, metadata in sorted(found.items()):
            if metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            refuse(metadata.error, f"topic {name!r}")
            if self.assigned:
                wanted = {p.partition for p in self.assigned if p.topic == name}
                metadata = metadata._replace(
                    leaders={p: leader for p, leader in metadata.leaders.items() if p in wanted}
                )
            alive[name] = metadata
        return alive

    def covers(self, place: TopicPartition) -> bool:
        """True if the query reads the partition as soon as it exists."""
        if self.pattern:
            return self._pattern_covers(place.topic)
        return place.topic in self.topics or place in self.assigned

    def _pattern_covers(self, topic: str) -> bool:
        return topic != self.excluded and re.fullmatch(self.pattern, topic) is not None

    def missing(self, topics_metadata: Mapping[str, TopicMetadata]) -> list[str]:
        """The named topics or partitions that do not exist; empty for a pattern."""
        if self.assigned:
            return [
                str(place)
                for place in self.assigned
                if place.topic not in topics_metadata
                or place.partition not in topics_metadata[place.topic].leaders
            ]
        return [name for name in self.topics if name not in topics_metadata]

    def existing(self, cluster: Cluster) -> dict[str, TopicMetadata]:
        """All topics; retries while a named topic does not exist, since it may be new."""

        def attempt() -> dict[str, TopicMetadata]:
            found = self.topics_metadata(cluster)
            missing = self.missing(found)
            if missing:
                raise Refused(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{', '.join(missing)} does not exist"
                )
            return found

        return cluster.persistently(
            attempt, "finding the topics", give_up_on=[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        )


def places_of(topics_metadata: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    return [
        TopicPartition(name, partition)
        for name, metadata in topics_metadata.items()
        for partition in metadata.leaders
    ]


def parse_subscription(options: Mapping[str, str]) -> Subscription:
    """From exactly one of the options subscribe, subscribePattern and assign (in lower case)."""
    given = [name for name in ("subscribe", "subscribepattern", "assign") if name in options]
    if len(given) != 1:
        raise BadOption(
            "give exactly one of subscribe, subscribePattern and assign"
            + (f", not {' and '.join(given)}" if given else "")
        )
    name = given[0]
    value = options[name].strip()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in value.split(",") if t.strip()))
        if not topics:
            raise BadOption(f"subscribe names no topic: {options[name]!r}")
        return Subscription(topics=topics)
    if name == "subscribepattern":
        return Subscription(pattern=_checked_pattern(value))
    return Subscription(assigned=_parse_assigned(value))


def _checked_pattern(pattern: str) -> str:
    if not pattern:
        raise BadOption("subscribePattern is empty")
    try:
        with warnings.catch_warnings():
            # Python warns of Java's nested sets, which it reads as other sets.
            warnings.simplefilter("error", FutureWarning)
            re.compile(pattern)
    except (re.error, FutureWarning) as broken:
        raise BadOption(
            f"subscribePattern {pattern!r} is not a regular expression that Python reads as Java "
            f"does ({broken}); spell out what only Java knows, such as \\p{{...}}, \\Q...\\E and "
            "[a-z&&[^b]]"
        ) from broken
    return pattern


def _parse_assigned(text: str) -> tuple[TopicPartition, ...]:
    form = 'assign takes JSON like {"topicA":[0,1],"topicB":[2,4]}'
    try:
        by_topic = json.loads(text)
    except ValueError as broken:
        raise BadOption(f"{form}: {broken}") from broken
    if not isinstance(by_topic, dict) or not all(
        isinstance(partitions, list) and all(type(p) is int and p >= 0 for p in partitions)
        for partitions in by_topic.values()
    ):
        raise BadOption(f"{form}, not {text!r}")
    places = tuple(
        TopicPartition(topic, partition)
        for topic, partitions in by_topic.items()
        for partition in partitions
    )
    if not places:
        raise BadOption(f"{form}; {text!r} names no partition")
    return places
