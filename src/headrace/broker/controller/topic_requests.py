"""Requests about topics, as decisions of ``core``: shared by one node and a cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.random_ids import draw_placement_seed, draw_topic_id
from headrace.core import topic_changes
from headrace.core.controller import Controller, CreateTopic
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import ClusterMetadata, TopicState
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicId

if TYPE_CHECKING:
    from headrace.world.world import World


def decide_creates(
    controller: Controller,
    requests: Sequence[NewTopic],
    dynamic_config: DynamicConfig,
    world: "World",
) -> list[CreateTopic | Rejected]:
    """One answer per request, in order, with the defaults of the broker's settings."""
    config = dynamic_config.config
    return topic_changes.decide_creates(
        controller,
        requests,
        lambda: (draw_topic_id(world.random), draw_placement_seed(world.random)),
        default_partition_count=config.int("num.partitions"),
        default_replication_factor=config.int("default.replication.factor"),
        check_settings=dynamic_config.check_topic,
    )


def find_to_delete(
    metadata: ClusterMetadata, wanted: Sequence[str | TopicId], config: BrokerConfig
) -> list[TopicState | Rejected]:
    """One answer per name or id, in order: the topic to delete, or the error."""
    if not config.bool("delete.topic.enable"):
        return [
            Rejected(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
            for _ in wanted
        ]
    answers: list[TopicState | Rejected] = []
    for each in wanted:
        if isinstance(each, str):
            topic = metadata.topics.get(each)
            missing = Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            topic = metadata.topic_by_id(each)
            missing = Rejected(ErrorCode.UNKNOWN_TOPIC_ID, "The topic no longer exists.")
        answers.append(missing if topic is None else topic)
    return answers
