"""DescribeConfigs: every setting of a resource, with its effective value and all its sources.

The sources by type of resource, highest precedence first:

    topic           the topic's own, then the broker's
    broker          dynamic for this broker, dynamic for all brokers, the file, the default
    broker logger   the level of a Python logger of this process
    group           the group's own, then the broker's
    client metrics  the subscription's own, then the default; stored, but not used by the broker

Every entry lists its *synonyms*: all sources with a value, the effective one first.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from headrace.broker.context import Context
from headrace.broker.handlers import broker_loggers
from headrace.broker.handlers.config_resources import check_broker_id, known_type
from headrace.broker.needs import NeedsBrokerId, NeedsConfig, NeedsMetadata
from headrace.core.topics import check_name
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.settings import kafka
from headrace.model.settings.headrace import ADDED, OURS, row_of
from headrace.model.settings.resources import ConfigSource, ResourceType
from headrace.model.settings.values import parse_value, value_to_text
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.metadata.dynamic_config import DynamicConfig

_WIRE_TYPES = {
    "bool": 1,
    "str": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "float": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
_LEVEL = "level"  # the kind of a log level, which has no number on the wire

_RESOURCES_PER_TURN = 10

_Result = m.DescribeConfigsResponse.DescribeConfigsResult
_Entry = m.DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = m.DescribeConfigsResponse.DescribeConfigsSynonym


class Needs(NeedsBrokerId, NeedsConfig, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


class _Given(NamedTuple):
    """A value of a setting, and its source."""

    name: str
    text: str | None
    source: ConfigSource


class _Setting(NamedTuple):
    """One setting of a resource."""

    name: str
    kind: str  # its type in the tables of settings; "" if it is not in them
    value: str | None
    given: tuple[_Given, ...]  # the effective one first
    read_only: bool = False


async def describe_configs(
    broker: Needs, context: Context, request: m.DescribeConfigsRequest
) -> m.DescribeConfigsResponse:
    for resource in request.resources:
        try:
            known_type(resource.resource_type)
        except Rejected as rejected:
            # The response has no error code of its own, so every resource gets it.
            return m.DescribeConfigsResponse(
                results=[_refused(each, rejected) for each in request.resources]
            )
    response = m.DescribeConfigsResponse()
    for number, resource in enumerate(request.resources, 1):
        response.results.append(_describe(broker, request, resource))
        if number % _RESOURCES_PER_TURN == 0:
            # A request for ten thousand topics must not delay other connections.
            await asyncio.sleep(0)
    return response


def _refused(
    resource: m.DescribeConfigsRequest.DescribeConfigsResource, rejected: Rejected
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    return _Result(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=rejected.code,
        error_message=rejected.message or "",
    )


def _describe(
    broker: Needs,
    request: m.DescribeConfigsRequest,
    resource: m.DescribeConfigsRequest.DescribeConfigsResource,
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    try:
        describe = _DESCRIBERS[ResourceType(resource.resource_type)]
        settings = describe(broker, resource.resource_name)
    except Rejected as rejected:
        return _refused(resource, rejected)
    wanted = resource.configuration_keys or None  # an empty list means all, as in Kafka
    return _Result(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_message="",
        configs=[
            _entry(setting, request.include_synonyms, request.include_documentation)
            for setting in settings
            if wanted is None or setting.name in wanted
        ],
    )


def _documentation(name: str) -> str | None:
    from headrace.model.settings.descriptions import meaning_of

    return meaning_of(name)


# Topics share most of their entries, and responses only read them.
@lru_cache(maxsize=2048)
def _entry(
    setting: _Setting, with_synonyms: bool, with_documentation: bool
) -> m.DescribeConfigsResponse.DescribeConfigsResourceResult:
    # An unknown setting may be a secret.
    sensitive = setting.kind in ("", "password")
    source = setting.given[0].source if setting.given else ConfigSource.DEFAULT_CONFIG
    entry = _Entry(
        name=setting.name,
        value=None if sensitive else setting.value,
        read_only=setting.read_only,
        is_default=source is ConfigSource.DEFAULT_CONFIG,
        config_source=source,
        is_sensitive=sensitive,
        config_type=_WIRE_TYPES.get(setting.kind, 0),
        documentation=_documentation(setting.name) if with_documentation else None,
    )
    if with_synonyms and setting.kind != _LEVEL:
        entry.synonyms = [
            _Synonym(name=given.name, value=None if sensitive else given.text, source=given.source)
            for given in setting.given
        ]
    return entry


# --- by type of resource


def _describe_topic(broker: Needs, topic: str) -> list[_Setting]:
    check_name(topic)
    if topic not in broker.metadata.topics:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    overrides = broker.dynamic_config.overrides(ResourceType.TOPIC, topic)
    settings = []
    for inherited in _inherited(broker).topics:
        own = overrides.get(inherited.name)
        if own is not None:
            given = _Given(inherited.name, own, ConfigSource.DYNAMIC_TOPIC_CONFIG)
            settings.append(inherited._replace(value=own, given=(given, *inherited.given)))
        elif inherited.name not in kafka.INTERNAL:
            settings.append(inherited)
    return settings


def _describe_broker(broker: Needs, name: str) -> list[_Setting]:
    if name:
        check_broker_id(broker, name)
        return _inherited(broker).broker
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _broker_setting(setting, text, (_Given(setting, text, source),))
        for setting, text in broker.dynamic_config.broker_overrides(None).items()
    ]


def _describe_loggers(broker: Needs, name: str) -> list[_Setting]:
    check_broker_id(broker, name)
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        _Setting(logger, _LEVEL, level, (_Given(logger, level, source),))
        for logger, level in broker_loggers.levels().items()
    ]


def _describe_group(broker: Needs, group: str) -> list[_Setting]:
    if not group:
        raise Rejected(ErrorCode.INVALID_REQUEST, "the group needs a name")
    overrides = broker.dynamic_config.overrides(ResourceType.GROUP, group)
    settings = []
    for name, row in kafka.GROUP.items():
        synonym = kafka.GROUP_SYNONYMS.get(name)
        if synonym is not None:
            given = _given_by_broker(broker, [synonym])
        else:
            given = (_Given(name, row.default, ConfigSource.DEFAULT_CONFIG),)
        if name in overrides:
            own = _Given(name, overrides[name], ConfigSource.DYNAMIC_GROUP_CONFIG)
            given = (own, *given)
        settings.append(_Setting(name, row.kind, given[0].text, given))
    return settings


def _describe_client_metrics(broker: Needs, name: str) -> list[_Setting]:
    if not name:
        raise Rejected(ErrorCode.INVALID_REQUEST, "the client metrics subscription needs a name")
    overrides = broker.dynamic_config.overrides(ResourceType.CLIENT_METRICS, name)
    settings = []
    for setting, row in kafka.CLIENT_METRICS.items():
        own = overrides.get(setting)
        if own is None:
            settings.append(_Setting(setting, row.kind, row.default, ()))
        else:
            given = _Given(setting, own, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)
            settings.append(_Setting(setting, row.kind, own, (given,)))
    return settings


_DESCRIBERS: dict[ResourceType, Callable[[Needs, str], list[_Setting]]] = {
    ResourceType.TOPIC: _describe_topic,
    ResourceType.BROKER: _describe_broker,
    ResourceType.BROKER_LOGGER: _describe_loggers,
    ResourceType.CLIENT_METRICS: _describe_client_metrics,
    ResourceType.GROUP: _describe_group,
}


# --- settings of the broker


class _Inherited(NamedTuple):
    """The settings of the broker, and those of topics without overrides."""

    config: BrokerConfig  # a change of settings creates a new one
    broker: list[_Setting]
    topics: list[_Setting]


# Clients often describe all topics in one request, and all of them inherit the same settings.
_inherited_by_config: "WeakKeyDictionary[DynamicConfig, _Inherited]" = WeakKeyDictionary()


def _inherited(broker: Needs) -> _Inherited:
    known = _inherited_by_config.get(broker.dynamic_config)
    if known is None or known.config is not broker.config:
        known = _Inherited(broker.config, _broker_settings(broker), _topic_settings(broker))
        _inherited_by_config[broker.dynamic_config] = known
    return known


def _topic_settings(broker: Needs) -> list[_Setting]:
    settings = []
    for name, row in kafka.TOPIC.items():
        synonyms = kafka.TOPIC_SYNONYMS.get(name)
        if synonyms is None:
            settings.append(_Setting(name, row.kind, row.default, ()))
        else:
            given = _without_other_defaults(synonyms[0], _given_by_broker(broker, synonyms))
            settings.append(_Setting(name, row.kind, broker.config.text(synonyms[0]), given))
    return settings


def _broker_settings(broker: Needs) -> list[_Setting]:
    dynamic = broker.dynamic_config.broker_overrides(None) | broker.dynamic_config.broker_overrides(
        broker.broker_id
    )
    added = ADDED if broker.config.is_on_zookeeper else OURS
    others = [name for name in dynamic if name not in kafka.BROKER and name not in added]
    settings = []
    for name in (*kafka.BROKER, *added, *others):
        if name in kafka.INTERNAL:
            continue
        given = _without_other_defaults(name, _given_by_broker(broker, _with_coarser_units(name)))
        own = [each for each in given if each.name == name]
        value = own[0].text if own else None
        settings.append(_broker_setting(name, value, given if own else ()))
    return settings


def _broker_setting(name: str, value: str | None, given: tuple[_Given, ...]) -> _Setting:
    row = row_of(name)
    if row is None:
        return _Setting(name, "", value, given, read_only=True)
    return _Setting(name, row.kind, value, given, read_only=not row.change)


def _with_coarser_units(name: str) -> list[str]:
    """A broker setting, and the settings in coarser units that apply if it is not set."""
    for synonyms in kafka.TOPIC_SYNONYMS.values():
        if name in synonyms and len(synonyms) > 1:
            return list(synonyms[synonyms.index(name) :])
    return [name]


def _given_by_broker(broker: Needs, names: Iterable[str]) -> tuple[_Given, ...]:
    """All values of these broker settings with their sources, the effective one first."""
    config = broker.config
    names = list(names)
    layers: tuple[tuple[ConfigSource, Callable[[str], str | None]], ...] = (
        (
            ConfigSource.DYNAMIC_BROKER_CONFIG,
            broker.dynamic_config.broker_overrides(broker.broker_id).get,
        ),
        (
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            broker.dynamic_config.broker_overrides(None).get,
        ),
        (ConfigSource.STATIC_BROKER_CONFIG, lambda name: _file_text(config, name)),
        (ConfigSource.DEFAULT_CONFIG, lambda name: _default_text(broker, name)),
    )
    return tuple(
        _Given(name, _normalized(name, text), source)
        for source, text_of in layers
        for name in names
        if (text := text_of(name)) is not None
    )


def _file_text(config: BrokerConfig, name: str) -> str | None:
    if name in ("node.id", "broker.id") and config.node_id_is_given:
        return str(config.node_id)
    return config.given_text(name)


def _default_text(broker: Needs, name: str) -> str | None:
    if name == "broker.id" and not broker.config.node_id_is_given:
        # Tools read the broker's id here, which the cluster may have chosen; Kafka's default is -1.
        return str(broker.broker_id)
    return broker.config.default_text(name)


def _normalized(name: str, text: str) -> str | None:
    row = row_of(name)
    return text if row is None else value_to_text(parse_value(name, text, row))


def _without_other_defaults(name: str, given: tuple[_Given, ...]) -> tuple[_Given, ...]:
    """Omit the defaults of coarser units, as Kafka does, if there are only defaults."""
    if any(each.source is not ConfigSource.DEFAULT_CONFIG for each in given):
        return given
    return tuple(each for each in given if each.name == name)
