"""CreateTopics, DeleteTopics, CreatePartitions."""

from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import (
    NeedsBrokerId,
    NeedsConfig,
    NeedsController,
    NeedsMetadata,
)
from headrace.core.controller import CreateTopic
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, BrokerId, TopicId
from headrace.model.settings import kafka
from headrace.model.settings.resources import ConfigSource
from headrace.wire import messages as m

_FIRST_VERSION_WITH_SETTINGS = 5

Setting = m.CreateTopicsResponse.CreatableTopicConfigs


class Needs(NeedsBrokerId, NeedsConfig, NeedsController, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


async def create_topics(
    broker: Needs, context: Context, request: m.CreateTopicsRequest
) -> m.CreateTopicsResponse:
    # A repeated name gets one error: the response has one entry per name.
    duplicates: dict[str, int] = {}
    for topic in request.topics:
        duplicates[topic.name] = duplicates.get(topic.name, 0) + 1
    new_topics = {topic.name: _new_topic(topic) for topic in request.topics}
    single = [new for name, new in new_topics.items() if duplicates[name] == 1]
    answers = await broker.controller.create_topics(
        single, validate_only=request.validate_only, timeout_s=request.timeout_ms / 1000
    )
    defaults = (
        _default_settings(broker) if context.api_version >= _FIRST_VERSION_WITH_SETTINGS else []
    )
    results = [
        _created(answer, defaults)
        if isinstance(answer, CreateTopic)
        else _refused(new.name, answer)
        for new, answer in zip(single, answers, strict=True)
    ]
    refusal = Rejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results += [_refused(name, refusal) for name, count in duplicates.items() if count > 1]
    return m.CreateTopicsResponse(topics=results)


def _new_topic(topic: m.CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [
            (assigned.partition_index, [BrokerId(broker) for broker in assigned.broker_ids])
            for assigned in topic.assignments
        ],
        {setting.name: setting.value for setting in topic.configs},
    )


def _created(
    change: CreateTopic, defaults: list[Setting]
) -> m.CreateTopicsResponse.CreatableTopicResult:
    topic = change.topic
    own = {
        name: Setting(name=name, value=value, config_source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
        for name, value in change.overrides.items()
    }
    settings = [own.pop(setting.name, setting) for setting in defaults] if own else defaults
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=[*settings, *own.values()] if defaults else [],
    )


def _default_settings(broker: Needs) -> list[Setting]:
    """The settings of a topic without overrides; built once for all topics of a request."""
    config = broker.config
    mine = broker.dynamic_config.broker_overrides(broker.broker_id)
    of_all = broker.dynamic_config.broker_overrides(None)
    settings = []
    for name, row in kafka.TOPIC.items():
        if name in kafka.INTERNAL:
            continue
        synonyms = kafka.TOPIC_SYNONYMS.get(name, ())
        value = config.text(synonyms[0]) if synonyms else row.default
        source = ConfigSource.DEFAULT_CONFIG
        if any(synonym in mine for synonym in synonyms):
            source = ConfigSource.DYNAMIC_BROKER_CONFIG
        elif any(synonym in of_all for synonym in synonyms):
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        elif any(config.given_text(synonym) is not None for synonym in synonyms):
            source = ConfigSource.STATIC_BROKER_CONFIG
        settings.append(Setting(name=name, value=value, config_source=source))
    return settings


def _refused(name: str, refusal: Rejected) -> m.CreateTopicsResponse.CreatableTopicResult:
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=name,
        error_code=refusal.code,
        error_message=str(refusal),
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


async def delete_topics(
    broker: Needs, context: Context, request: m.DeleteTopicsRequest
) -> m.DeleteTopicsResponse:
    """Delete topics by name or, from version 6, by id; the response repeats the name or id."""
    metadata = broker.metadata
    wanted = [(state.name, TopicId(state.topic_id)) for state in request.topics]
    wanted += [(name, NO_TOPIC_ID) for name in request.topic_names]
    counts: dict[tuple[str | None, TopicId], int] = {}
    for each in wanted:
        counts[each] = counts.get(each, 0) + 1
    results: list[m.DeleteTopicsResponse.DeletableTopicResult] = []
    names: list[str] = []
    ids: dict[str, TopicId] = {}  # of topics requested by id: a new topic may get the same name
    for (name, topic_id), count in counts.items():
        try:
            if count > 1:
                what = "name" if name is not None else "id"
                raise Rejected(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            names.append(_name_to_delete(metadata.topic_by_id(topic_id), name, topic_id))
            if name is None:
                ids[names[-1]] = topic_id
        except Rejected as refusal:
            results.append(_not_deleted(name, topic_id, refusal))
    if len(set(names)) != len(names):
        twice = {name for name in names if names.count(name) > 1}
        both = Rejected(ErrorCode.INVALID_REQUEST, "The topic is given by name and by id.")
        results += [_not_deleted(name, NO_TOPIC_ID, both) for name in sorted(twice)]
        names = [name for name in names if name not in twice]
    answers = await broker.controller.delete_topics(
        [ids.get(name, name) for name in names], timeout_s=request.timeout_ms / 1000
    )
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, Rejected) and answer.code == ErrorCode.UNKNOWN_TOPIC_ID:
            results.append(_not_deleted(None, ids[name], answer))
        elif isinstance(answer, TopicState):
            results.append(
                m.DeleteTopicsResponse.DeletableTopicResult(
                    name=name,
                    topic_id=answer.topic_id,
                    error_code=ErrorCode.NONE,
                    error_message=None,
                )
            )
        else:
            results.append(_not_deleted(name, NO_TOPIC_ID, answer))
    return m.DeleteTopicsResponse(responses=results)


def _name_to_delete(found: TopicState | None, name: str | None, topic_id: TopicId) -> str:
    if name is not None and topic_id != NO_TOPIC_ID:
        raise Rejected(ErrorCode.INVALID_REQUEST, "A topic needs a name or an id, not both.")
    if name is not None:
        return name
    if topic_id == NO_TOPIC_ID:
        raise Rejected(ErrorCode.INVALID_REQUEST, "A topic needs a name or an id.")
    if found is None:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_ID, "Unknown topic id.")
    return found.name


def _not_deleted(
    name: str | None, topic_id: TopicId, refusal: Rejected
) -> m.DeleteTopicsResponse.DeletableTopicResult:
    return m.DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=refusal.code, error_message=str(refusal)
    )


async def create_partitions(
    broker: Needs, context: Context, request: m.CreatePartitionsRequest
) -> m.CreatePartitionsResponse:
    response = m.CreatePartitionsResponse
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    results = [
        response.CreatePartitionsTopicResult(
            name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name."
        )
        for name, count in counts.items()
        if count > 1
    ]
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        result = response.CreatePartitionsTopicResult(
            name=topic.name, error_code=ErrorCode.NONE, error_message=None
        )
        try:
            await broker.controller.create_partitions(
                topic.name,
                topic.count,
                None
                if topic.assignments is None
                else [[BrokerId(b) for b in entry.broker_ids] for entry in topic.assignments],
                validate_only=request.validate_only,
                timeout_s=request.timeout_ms / 1000,
            )
        except Rejected as refusal:
            result.error_code, result.error_message = refusal.code, refusal.message
        results.append(result)
    return response(results=results)
