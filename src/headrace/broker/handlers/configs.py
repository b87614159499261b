"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Which value counts and where it comes from, by kind of resource:

    topic           its own, then the broker's twin by the order below
    broker          dynamic of this broker, dynamic of all brokers, the file, the default
    broker logger   the level of a Python logger under ``headrace``; of this process, not kept
    group           its own, then the broker's twin
    client metrics  its own, then the default; kept, though no client is asked for any

Every entry lists its *synonyms*: all places that give a value, the winner first. A wrong
value is INVALID_CONFIG on a topic or group and INVALID_REQUEST on a broker, as in Kafka.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from headrace.broker.context import Context
from headrace.core.topics import check_name
from headrace.model.config import (
    OURS,
    BrokerConfig,
    check_dynamic,
    check_group_overrides,
    check_topic_overrides,
    contradictions,
    row_of,
    without_effect,
)
from headrace.model.errors import ConfigError, ErrorCode, Rejected
from headrace.model.settings import kafka
from headrace.model.settings.values import parse_value, split_list, value_to_text
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.controller.service import ControllerService
    from headrace.broker.services import Services

log = logging.getLogger(__name__)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

# Where a value comes from, as numbered on the wire.
FROM_TOPIC, FROM_BROKER, FROM_ALL_BROKERS, FROM_FILE, FROM_DEFAULT = 1, 2, 3, 4, 5
FROM_LOGGER, FROM_CLIENT_METRICS, FROM_GROUP = 6, 7, 8

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_OPERATIONS = {SET: "SET", DELETE: "DELETE", APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

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

# Kafka's names for levels; Python has no TRACE, so it is a number below DEBUG.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_LEVEL = "level"  # a kind that has no number on the wire
_ROOT_LOGGER = "root"  # stands for the logger above all of ours
_OUR_LOGGERS = "headrace"

_MATCHABLE = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
_INTERVAL_MS_MIN, _INTERVAL_MS_MAX = 100, 3_600_000

_RESOURCES_PER_TURN = 10

_Result = m.DescribeConfigsResponse.DescribeConfigsResult
_Entry = m.DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = m.DescribeConfigsResponse.DescribeConfigsSynonym
_Answer = TypeVar("_Answer")


class _Source(NamedTuple):
    """One place that gives a setting a value."""

    name: str
    text: str | None
    source: int


class _Found(NamedTuple):
    """One setting of a resource, with all that is known of it."""

    name: str
    kind: str  # as in the tables; "" if they do not have it
    value: str | None
    sources: tuple[_Source, ...]
    read_only: bool = False


# --- describing


async def describe_configs(
    broker: "Services", context: Context, request: m.DescribeConfigsRequest
) -> m.DescribeConfigsResponse:
    for resource in request.resources:
        if resource.resource_type not in _DESCRIBERS:
            # The request is wrong as a whole, and has no place to say so but each resource.
            reason = f"Resources of type {resource.resource_type} have no settings"
            return m.DescribeConfigsResponse(
                results=[_refusal(each, reason) for each in request.resources]
            )
    response = m.DescribeConfigsResponse()
    for number, resource in enumerate(request.resources, 1):
        response.results.append(_describe(broker, request, resource))
        if number % _RESOURCES_PER_TURN == 0:
            # Whoever asks for ten thousand topics does not keep the others waiting.
            await asyncio.sleep(0)
    return response


def _refusal(
    resource: m.DescribeConfigsRequest.DescribeConfigsResource, reason: str
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    return _Result(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=reason,
    )


def _describe(
    broker: "Services",
    request: m.DescribeConfigsRequest,
    resource: m.DescribeConfigsRequest.DescribeConfigsResource,
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    result = _Result(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=""
    )
    try:
        entries = _DESCRIBERS[resource.resource_type](broker, resource.resource_name)
    except Rejected as rejected:
        result.error_code = rejected.code
        result.error_message = rejected.message or ""
        return result
    wanted = resource.configuration_keys or None  # Kafka takes an empty list for all, too
    for found in entries:
        if wanted is None or found.name in wanted:
            result.configs.append(
                _entry(found, request.include_synonyms, request.include_documentation)
            )
    return result


def _documentation(name: str) -> str | None:
    from headrace.model.settings.descriptions import meaning_of

    return meaning_of(name)


# Topics share most of their entries, and an answer only reads them.
@lru_cache(maxsize=2048)
def _entry(
    found: _Found, with_synonyms: bool, with_documentation: bool
) -> m.DescribeConfigsResponse.DescribeConfigsResourceResult:
    # What we know nothing of may be a secret.
    sensitive = found.kind in ("", "password")
    sources = found.sources
    source = sources[0].source if sources else FROM_DEFAULT
    entry = _Entry(
        name=found.name,
        value=None if sensitive else found.value,
        read_only=found.read_only,
        is_default=source == FROM_DEFAULT,
        config_source=source,
        is_sensitive=sensitive,
        config_type=_WIRE_TYPES.get(found.kind, 0),
        documentation=_documentation(found.name) if with_documentation else None,
    )
    if with_synonyms and found.kind != _LEVEL:
        entry.synonyms = [
            _Synonym(name=place.name, value=None if sensitive else place.text, source=place.source)
            for place in sources
        ]
    return entry


def _broker_sources(broker: "Services", names: Iterable[str]) -> tuple[_Source, ...]:
    """All places that give one of these equivalent broker settings a value, winner first."""
    config = broker.config
    names = list(names)
    layers: tuple[tuple[int, Callable[[str], str | None]], ...] = (
        (FROM_BROKER, broker.controller.broker_overrides(broker.broker_id).get),
        (FROM_ALL_BROKERS, broker.controller.broker_overrides(None).get),
        (FROM_FILE, _file_text(config)),
        (FROM_DEFAULT, _default_text(config)),
    )
    return tuple(
        _Source(name, _normal(name, text), source)
        for source, text_of in layers
        for name in names
        if (text := text_of(name)) is not None
    )


def _file_text(config: BrokerConfig) -> Callable[[str], str | None]:
    def text_of(name: str) -> str | None:
        if name in ("node.id", "broker.id") and config.node_id_is_given:
            return str(config.node_id)
        return config.given_text(name)

    return text_of


def _default_text(config: BrokerConfig) -> Callable[[str], str | None]:
    def text_of(name: str) -> str | None:
        if name == "broker.id" and not config.node_id_is_given:
            return str(config.node_id)  # tools take it for the broker's id; -1 is nobody's
        return config.default_text(name)

    return text_of


def _normal(name: str, text: str) -> str | None:
    row = row_of(name)
    return text if row is None else value_to_text(parse_value(name, text, row))


def _from(name: str, sources: tuple[_Source, ...]) -> tuple[_Source, ...]:
    """Leave out what only a twin of another unit gives, unless somebody gave it."""
    if any(place.source != FROM_DEFAULT for place in sources):
        return sources
    return tuple(place for place in sources if place.name == name)


class _Inherited(NamedTuple):
    """What the settings of a broker come to. A change of them makes a new BrokerConfig."""

    config: BrokerConfig
    broker: list[_Found]
    topics: list[_Found]  # without values of their own


# Many a client asks for all topics at once, and what they inherit is the same.
_inherited_by_control: "WeakKeyDictionary[ControllerService, _Inherited]" = WeakKeyDictionary()


def _inherited(broker: "Services") -> _Inherited:
    known = _inherited_by_control.get(broker.controller)
    if known is None or known.config is not broker.config:
        known = _Inherited(broker.config, _of_broker(broker), _of_topics(broker))
        _inherited_by_control[broker.controller] = known
    return known


def _of_topics(broker: "Services") -> list[_Found]:
    found = []
    for name, row in kafka.TOPIC.items():
        twins = [twin for twin, _ in kafka.TOPIC_TWINS.get(name, ())]
        sources = _from(twins[0], _broker_sources(broker, twins)) if twins else ()
        value = broker.config.text(twins[0]) if twins else row[1]
        found.append(_Found(name, row[0], value, sources))
    return found


def _of_broker(broker: "Services") -> list[_Found]:
    dynamic = broker.controller.broker_overrides(None) | broker.controller.broker_overrides(
        broker.broker_id
    )
    rest = [setting for setting in dynamic if setting not in kafka.BROKER and setting not in OURS]
    found = []
    for setting in (*kafka.BROKER, *OURS, *rest):
        if setting in kafka.INTERNAL:
            continue
        sources = _from(setting, _broker_sources(broker, _twins_of(setting)))
        own = [place for place in sources if place.name == setting]
        value = own[0].text if own else None
        found.append(_of_one_broker(setting, value, sources if own else ()))
    return found


def _of_one_broker(setting: str, value: str | None, sources: tuple[_Source, ...]) -> _Found:
    row = row_of(setting)
    if row is None:
        return _Found(setting, "", value, sources, read_only=True)
    return _Found(setting, row[0], value, sources, read_only=not row[3])


def _twins_of(setting: str) -> list[str]:
    """A setting with those of coarser units that speak in its place."""
    for twins in kafka.TOPIC_TWINS.values():
        names = [twin for twin, _ in twins]
        if setting in names and len(names) > 1:
            return names[names.index(setting) :]
    return [setting]


def _describe_topic(broker: "Services", topic: str) -> list[_Found]:
    check_name(topic)
    if topic not in broker.metadata.topics:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    overrides = broker.controller.overrides(TOPIC, topic)
    found = []
    for inherited in _inherited(broker).topics:
        own = overrides.get(inherited.name)
        if own is not None:
            sources = (_Source(inherited.name, own, FROM_TOPIC), *inherited.sources)
            found.append(inherited._replace(value=own, sources=sources))
        elif inherited.name not in kafka.INTERNAL:
            found.append(inherited)
    return found


def _describe_broker(broker: "Services", name: str) -> list[_Found]:
    if name:
        _check_broker_id(broker, name)
        return _inherited(broker).broker
    return [
        _of_one_broker(setting, text, (_Source(setting, text, FROM_ALL_BROKERS),))
        for setting, text in broker.controller.broker_overrides(None).items()
    ]


def _check_broker_id(broker: "Services", name: str) -> None:
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(name) < 20):
        raise Rejected(ErrorCode.INVALID_REQUEST, f"'{name[:100]}' is no broker id")
    if int(name) != broker.broker_id:
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {broker.broker_id}; ask broker {name} for its settings",
        )


def _describe_loggers(broker: "Services", name: str) -> list[_Found]:
    _check_broker_id(broker, name)
    return [
        _Found(logger, _LEVEL, level, (_Source(logger, level, FROM_LOGGER),))
        for logger in _logger_names()
        for level in [_level_name(_logger(logger).getEffectiveLevel())]
    ]


def _logger_names() -> list[str]:
    """Ours, with the names above them that nobody logs to: a level there counts for all below."""
    known = logging.root.manager.loggerDict
    ours = [name for name in known if f"{name}.".startswith(f"{_OUR_LOGGERS}.")]
    return [_ROOT_LOGGER, *sorted(ours)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_OUR_LOGGERS if name == _ROOT_LOGGER else name)


def _level_name(level: int) -> str:
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")


def _describe_group(broker: "Services", group: str) -> list[_Found]:
    if not group:
        raise Rejected(ErrorCode.INVALID_REQUEST, "A group needs a name")
    overrides = broker.controller.overrides(GROUP, group)
    found = []
    for name, row in kafka.GROUP.items():
        twin = kafka.GROUP_TWINS.get(name)
        if twin is not None:
            sources = _broker_sources(broker, [twin])
        else:
            sources = (_Source(name, row[1], FROM_DEFAULT),)
        if name in overrides:
            sources = (_Source(name, overrides[name], FROM_GROUP), *sources)
        found.append(_Found(name, row[0], sources[0].text, sources))
    return found


def _describe_client_metrics(broker: "Services", name: str) -> list[_Found]:
    if not name:
        raise Rejected(ErrorCode.INVALID_REQUEST, "A subscription to metrics needs a name")
    overrides = broker.controller.overrides(CLIENT_METRICS, name)
    found = []
    for setting, row in kafka.CLIENT_METRICS.items():
        own = overrides.get(setting)
        sources = () if own is None else (_Source(setting, own, FROM_CLIENT_METRICS),)
        found.append(_Found(setting, row[0], row[1] if own is None else own, sources))
    return found


_DESCRIBERS: dict[int, Callable[["Services", str], list[_Found]]] = {
    TOPIC: _describe_topic,
    BROKER: _describe_broker,
    BROKER_LOGGER: _describe_loggers,
    CLIENT_METRICS: _describe_client_metrics,
    GROUP: _describe_group,
}


# --- altering

# A change is read, made and written back; two at once would lose one of them.
_changing: "WeakKeyDictionary[ControllerService, asyncio.Lock]" = WeakKeyDictionary()


def _turn(broker: "Services") -> asyncio.Lock:
    return _changing.setdefault(broker.controller, asyncio.Lock())


class _Change(NamedTuple):
    name: str
    operation: int
    text: str | None


class _Asked(NamedTuple):
    """What a request wants of one resource."""

    resource_type: int
    name: str
    changes: list[_Change]
    keeps_others: bool  # whether settings that are not named stay


async def alter_configs(
    broker: "Services", context: Context, request: m.AlterConfigsRequest
) -> m.AlterConfigsResponse:
    """Replace all settings of each resource: what is not named falls back."""
    wanted = [
        _Asked(
            resource.resource_type,
            resource.resource_name,
            [_Change(config.name, SET, config.value) for config in resource.configs],
            keeps_others=False,
        )
        for resource in request.resources
    ]
    answer = m.AlterConfigsResponse.AlterConfigsResourceResponse
    answers = await _altered(broker, context, wanted, answer, request.validate_only)
    return m.AlterConfigsResponse(responses=answers)


async def incremental_alter_configs(
    broker: "Services", context: Context, request: m.IncrementalAlterConfigsRequest
) -> m.IncrementalAlterConfigsResponse:
    """Change single settings of each resource; the others stay."""
    wanted = [
        _Asked(
            resource.resource_type,
            resource.resource_name,
            [
                _Change(config.name, config.config_operation, config.value)
                for config in resource.configs
            ],
            keeps_others=True,
        )
        for resource in request.resources
    ]
    answer = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    answers = await _altered(broker, context, wanted, answer, request.validate_only)
    return m.IncrementalAlterConfigsResponse(responses=answers)


async def _altered(
    broker: "Services",
    context: Context,
    wanted: list[_Asked],
    answer: Callable[..., _Answer],
    validate_only: bool,
) -> list[_Answer]:
    """What came of each resource; one that is refused does not hold up the others."""
    repeated = _repeated((asked.resource_type, asked.name) for asked in wanted)
    answers = []
    for asked in wanted:
        code, message = ErrorCode.NONE, None
        try:
            _refuse_repeated_resource(asked.resource_type, asked.name, repeated)
            _refuse_repeated_names(change.name for change in asked.changes)
            await _alter(broker, context, asked, validate_only)
        except Rejected as rejected:
            code, message = rejected.code, rejected.message
        answers.append(
            answer(
                resource_type=asked.resource_type,
                resource_name=asked.name,
                error_code=code,
                error_message=message,
            )
        )
    return answers


async def _alter(broker: "Services", context: Context, asked: _Asked, validate_only: bool) -> None:
    if asked.resource_type == BROKER_LOGGER:
        if not asked.keeps_others:
            raise Rejected(
                ErrorCode.INVALID_REQUEST,
                "Log levels can be changed with IncrementalAlterConfigs alone",
            )
        _alter_loggers(broker, context, asked, validate_only)
        return
    _check_resource(broker, asked.resource_type, asked.name)
    async with _turn(broker):
        overrides = _changed(broker, asked)
        await _replace(broker, context, asked, overrides, validate_only)


def _repeated(keys: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    seen: set[tuple[int, str]] = set()
    repeated: set[tuple[int, str]] = set()
    for key in keys:
        (repeated if key in seen else seen).add(key)
    return repeated


def _refuse_repeated_resource(
    resource_type: int, name: str, repeated: set[tuple[int, str]]
) -> None:
    if (resource_type, name) in repeated:
        raise Rejected(ErrorCode.INVALID_REQUEST, f"{name[:100]!r} appears twice in the request")


def _refuse_repeated_names(names: Iterable[str]) -> None:
    names = list(names)
    if len(set(names)) < len(names):
        raise Rejected(ErrorCode.INVALID_REQUEST, "A setting appears twice for the same resource")


def _value_of(name: str, text: str | None) -> str:
    if text is None:
        raise Rejected(ErrorCode.INVALID_REQUEST, f"{name} needs a value")
    return text


def _check_resource(broker: "Services", resource_type: int, name: str) -> None:
    """Refuse a resource that cannot have settings."""
    if resource_type == TOPIC:
        if not name:
            raise Rejected(
                ErrorCode.INVALID_REQUEST, "There are no settings for all topics at once"
            )
        check_name(name)
    elif resource_type == BROKER:
        if name:
            _check_broker_id(broker, name)
    elif resource_type in (GROUP, CLIENT_METRICS):
        if not name:
            raise Rejected(ErrorCode.INVALID_REQUEST, "The resource needs a name")
    else:
        raise Rejected(
            ErrorCode.INVALID_REQUEST, f"Resources of type {resource_type} have no settings"
        )


def _changed(broker: "Services", asked: _Asked) -> dict[str, str]:
    """The settings of a resource with the changes made."""
    if not asked.keeps_others:
        return {change.name: _value_of(change.name, change.text) for change in asked.changes}
    overrides: dict[str, str] = broker.controller.overrides(asked.resource_type, asked.name)
    for change in asked.changes:
        if change.operation not in _OPERATIONS:
            raise Rejected(
                ErrorCode.INVALID_REQUEST,
                f"Unknown operation {change.operation} for {change.name}",
            )
        if change.operation == DELETE:
            overrides.pop(change.name, None)
            continue
        text = _value_of(change.name, change.text)
        row = _row(asked.resource_type, change.name)
        if change.operation in (APPEND, SUBTRACT):
            if row is None or row[0] != "list":
                raise Rejected(
                    ErrorCode.INVALID_CONFIG,
                    f"{_OPERATIONS[change.operation]} is for lists, and {change.name} is none",
                )
            present = overrides.get(change.name)
            if present is None:
                present = _starting_list(broker.config, asked.resource_type, change.name, row)
            overrides[change.name] = _list_with(present, change.operation, text)
        elif row is not None and row[0] == "list":
            items = split_list(text)
            # Left as it is, a lone comma is refused; made one item it would be the empty list.
            overrides[change.name] = text if "" in items else ",".join(dict.fromkeys(items))
        else:
            overrides[change.name] = text
    return overrides


def _row(resource_type: int, name: str) -> kafka.Row | None:
    if resource_type == BROKER:
        return row_of(name)
    tables = {TOPIC: kafka.TOPIC, GROUP: kafka.GROUP, CLIENT_METRICS: kafka.CLIENT_METRICS}
    return tables[resource_type].get(name)


def _starting_list(config: BrokerConfig, resource_type: int, name: str, row: kafka.Row) -> str:
    """What a list starts from that the resource does not have itself."""
    if resource_type == TOPIC and name in kafka.TOPIC_TWINS:
        return config.text(kafka.TOPIC_TWINS[name][0][0]) or ""
    if resource_type == BROKER:
        return config.text(name) or ""
    return row[1] or ""


def _list_with(present: str, operation: int, text: str) -> str:
    items = split_list(present)
    for item in split_list(text):
        if operation == SUBTRACT:
            items = [kept for kept in items if kept != item]
        elif item not in items:
            items.append(item)
    return ",".join(items)


async def _replace(
    broker: "Services",
    context: Context,
    asked: _Asked,
    overrides: dict[str, str],
    validate_only: bool,
) -> None:
    resource_type, name = asked.resource_type, asked.name
    _check_overrides(broker, resource_type, name, overrides)
    if resource_type == TOPIC and name not in broker.metadata.topics:  # no earlier, as in Kafka
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}")
    before = broker.controller.overrides(resource_type, name)
    if not validate_only and overrides != before:
        built_on = before if asked.keeps_others else None
        await broker.controller.alter_configs(resource_type, name, overrides, built_on=built_on)
        _tell(context, resource_type, name, overrides)


def _check_overrides(
    broker: "Services", resource_type: int, name: str, overrides: Mapping[str, str]
) -> None:
    # A wrong value has another code on a broker; there it may be the state that forbids it.
    code = ErrorCode.INVALID_CONFIG
    try:
        if resource_type == TOPIC:
            for line in contradictions(check_topic_overrides(broker.config, overrides), name):
                log.warning("%s", line)
        elif resource_type == BROKER:
            code = ErrorCode.INVALID_REQUEST
            check_dynamic(broker.config, overrides, for_all=not name)
        elif resource_type == GROUP:
            check_group_overrides(broker.config, overrides)
        else:
            _check_client_metrics(overrides)
    except ConfigError as error:
        raise Rejected(code, str(error)) from error


def _check_client_metrics(overrides: Mapping[str, str]) -> None:
    for name, text in overrides.items():
        row = kafka.CLIENT_METRICS.get(name)
        if row is None:
            raise Rejected(ErrorCode.INVALID_REQUEST, f"{name} is not a setting of client metrics")
        value = parse_value(name, text, row)
        if isinstance(value, int) and not _INTERVAL_MS_MIN <= value <= _INTERVAL_MS_MAX:
            raise Rejected(
                ErrorCode.INVALID_REQUEST,
                f"{name}={text}: expected from {_INTERVAL_MS_MIN} to {_INTERVAL_MS_MAX}",
            )
        if name == "match":
            for pattern in split_list(text):
                key, equals, _ = pattern.partition("=")
                if not equals or key.strip() not in _MATCHABLE:
                    raise ConfigError(
                        f"match={pattern}: expected key=pattern with one of "
                        + ", ".join(sorted(_MATCHABLE))
                    )


def _tell(context: Context, resource_type: int, name: str, overrides: Mapping[str, str]) -> None:
    kinds = {TOPIC: "topic", BROKER: "broker", CLIENT_METRICS: "client metrics", GROUP: "group"}
    what = f"{kinds[resource_type]} {name or '(all)'}"
    log.info(
        "%s at %s (%s) set the settings of %s; its own are now: %s",
        context.principal,
        context.client_host,
        context.client_id or "no client id",
        what,
        ", ".join(sorted(overrides)) or "none",
    )
    tables = {
        TOPIC: kafka.TOPIC,
        BROKER: kafka.BROKER,
        CLIENT_METRICS: kafka.CLIENT_METRICS,
        GROUP: kafka.GROUP,
    }
    for line in without_effect(overrides, tables[resource_type]):
        log.warning("%s: %s", what, line)


def _alter_loggers(
    broker: "Services", context: Context, asked: _Asked, validate_only: bool
) -> None:
    _check_broker_id(broker, asked.name)
    known = _logger_names()
    for change in asked.changes:
        if change.operation not in (SET, DELETE):
            operation = _OPERATIONS.get(change.operation, str(change.operation))
            raise Rejected(
                ErrorCode.INVALID_REQUEST, f"{operation} is not for log levels: {change.name}"
            )
        if change.name not in known:
            raise Rejected(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist")
        if change.operation == DELETE and change.name == _ROOT_LOGGER:
            raise Rejected(
                ErrorCode.INVALID_REQUEST, "The level of the root logger cannot be removed"
            )
        if change.operation == SET and change.text not in _LEVELS:
            raise Rejected(
                ErrorCode.INVALID_CONFIG,
                f"{change.name}={change.text}: expected one of {', '.join(_LEVELS)}",
            )
    if validate_only:
        return
    for change in asked.changes:
        level = logging.NOTSET if change.operation == DELETE else _LEVELS[change.text or ""]
        _logger(change.name).setLevel(level)
        log.info(
            "%s at %s set the level of logger %s to %s",
            context.principal,
            context.client_host,
            change.name,
            change.text or "its parent's",
        )


# --- listing


def list_config_resources(
    broker: "Services", context: Context, request: m.ListConfigResourcesRequest
) -> m.ListConfigResourcesResponse:
    """Everything that has or could have settings, by kind; version 0 knew client metrics alone."""
    kinds = set(request.resource_types)
    if context.api_version == 0:
        kinds = {CLIENT_METRICS}
    unknown = kinds - set(_DESCRIBERS)
    if unknown:
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    brokers = [str(broker_id) for broker_id in broker.metadata.brokers]
    names = {
        BROKER_LOGGER: brokers,
        BROKER: brokers,
        TOPIC: list(broker.metadata.topics),
        GROUP: broker.controller.configured_names(GROUP),
        CLIENT_METRICS: broker.controller.configured_names(CLIENT_METRICS),
    }
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind, all_names in names.items()
            if not kinds or kind in kinds
            for name in all_names
        ]
    )
