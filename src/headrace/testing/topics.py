"""The topics of a test: read the ``topics`` argument, create the topics, compare existing ones."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.blocking import Connection
from headrace.model.settings.resources import ConfigSource, ResourceType
from headrace.testing.settings import as_text
from headrace.wire import messages as m

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

# Names, or name -> partition count, or name -> settings with "partitions" among them.
Topics = Iterable[str] | Mapping[str, int | Mapping[str, Any]]

Address = tuple[str, int]

_CLIENT_ID = "headrace-testing"
_ANSWER_TIMEOUT_S = 10.0
_CONTROLLER_TIMEOUT_S = 30.0
_RETRY_S = 0.05
_PARTITIONS = "partitions"


class TopicShape(NamedTuple):
    """What a test asks of one topic."""

    partitions: int
    settings: dict[str, str]

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in sorted(self.settings.items())]
        count = f"{self.partitions} partition{'s' if self.partitions != 1 else ''}"
        return ", ".join([count, *settings])


def parse_topics(topics: Topics) -> dict[str, TopicShape]:
    """Raise TypeError or ValueError, with the argument named, if ``topics`` is something else."""
    if isinstance(topics, (str, bytes)):  # Python would take it for a list of letters
        raise TypeError(f"topics takes several names: topics=[{topics!r}]")
    if not isinstance(topics, Iterable):
        raise TypeError(
            "topics: expected names, or a mapping from name to partition count or settings; "
            f"got {topics!r}"
        )
    wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    for name in wanted:
        if not isinstance(name, str):
            raise TypeError(f"topics: expected topic names as strings; got {name!r}")
    return {name: _shape(f"topics[{name!r}]", shape) for name, shape in wanted.items()}


def _shape(argument: str, shape: Any) -> TopicShape:
    if isinstance(shape, Mapping):
        settings = dict(shape)
        count = settings.pop(_PARTITIONS, 1)
        argument_of_count = f"{argument}[{_PARTITIONS!r}]"
        expected = "a partition count"
    else:
        settings, count, argument_of_count = {}, shape, argument
        expected = "a partition count, or a mapping of settings"
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{argument_of_count}: expected {expected}; got {count!r}")
    if count < 1:
        raise ValueError(f"{argument_of_count}: expected at least 1 partition; got {count}")
    return TopicShape(count, as_text(argument, settings))


def create_topics(admin: "AdminClient", shapes: Mapping[str, TopicShape]) -> None:
    """Create topics. Raises KafkaException if the broker refuses one of them."""
    for refusal in _create(admin, shapes).values():
        raise refusal


def ensure_topics(admin: "AdminClient", address: Address, shapes: Mapping[str, TopicShape]) -> None:
    """Create the topics that do not exist. Raises ValueError if one exists in another shape."""
    from confluent_kafka import KafkaError

    for name, refusal in _create(admin, shapes).items():
        if refusal.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise refusal
        with Connection(*address, client_id=_CLIENT_ID) as connection:
            existing = _existing_shape(admin, connection, name)
        if existing != shapes[name]:
            raise ValueError(
                f"topics[{name!r}]: the data directory has this topic with {existing}; "
                f"the test asks for {shapes[name]}. Ask for the existing shape, or use "
                "another name or data directory."
            )


def _create(admin: "AdminClient", shapes: Mapping[str, TopicShape]) -> "dict[str, KafkaException]":
    """Create topics, also if a fault has just moved the controller; returns refusals by name.

    librdkafka asks the controller that it knows, and looks for another one only when told to.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.cimpl import NewTopic

    give_up_at = time.monotonic() + _CONTROLLER_TIMEOUT_S
    left = dict(shapes)
    refusals: dict[str, KafkaException] = {}
    while left:
        asked = [
            NewTopic(name, num_partitions=shape.partitions, config=shape.settings)
            for name, shape in left.items()
        ]
        for name, created in admin.create_topics(asked).items():
            try:
                created.result()
            except KafkaException as refused:
                is_elsewhere = refused.args[0].code() == KafkaError.NOT_CONTROLLER
                if is_elsewhere and time.monotonic() < give_up_at:
                    continue
                refusals[name] = refused
            del left[name]
        if left:
            admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
            time.sleep(_RETRY_S)
    return refusals


def _existing_shape(admin: "AdminClient", connection: Connection, name: str) -> TopicShape:
    described = admin.list_topics(name, timeout=_ANSWER_TIMEOUT_S).topics[name]
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=name
    )
    request = m.DescribeConfigsRequest(resources=[resource])
    (result,) = connection.request(request, m.DescribeConfigsResponse).results
    settings = {
        entry.name: entry.value or ""
        for entry in result.configs
        if entry.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
    }
    return TopicShape(len(described.partitions), settings)
