"""AlterConfigs and IncrementalAlterConfigs: check a change, then store it.

An invalid value is INVALID_CONFIG on a topic or group and INVALID_REQUEST on a broker, as in
Kafka.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from headrace.broker.context import Context
from headrace.broker.handlers import broker_loggers
from headrace.broker.handlers.config_resources import check_resource, is_broker_id, known_type
from headrace.broker.needs import (
    NeedsBrokerId,
    NeedsConfig,
    NeedsController,
    NeedsMetadata,
)
from headrace.model.config import (
    BrokerConfig,
    check_dynamic,
    check_group_overrides,
    check_topic_overrides,
    contradictions,
    without_effect,
)
from headrace.model.errors import ConfigError, ErrorCode, Rejected
from headrace.model.settings import kafka
from headrace.model.settings.headrace import row_of
from headrace.model.settings.resources import AlterOperation, ResourceType
from headrace.model.settings.values import parse_value, split_list
from headrace.wire import messages as m

_log = logging.getLogger("headrace.broker")

# The attributes by which a client metrics subscription can match clients.
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

_TABLES = {
    ResourceType.TOPIC: kafka.TOPIC,
    ResourceType.BROKER: kafka.BROKER,
    ResourceType.CLIENT_METRICS: kafka.CLIENT_METRICS,
    ResourceType.GROUP: kafka.GROUP,
}

_Answer = TypeVar("_Answer")


class Needs(NeedsBrokerId, NeedsConfig, NeedsController, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


class _Change(NamedTuple):
    name: str
    operation: int
    text: str | None


class _Alteration(NamedTuple):
    """The changes that a request makes to one resource."""

    resource_type: int
    name: str
    changes: list[_Change]
    incremental: bool  # other settings stay as they are


async def alter_configs(
    broker: Needs, context: Context, request: m.AlterConfigsRequest
) -> m.AlterConfigsResponse:
    """Replace all settings of each resource: other settings return to their inherited value."""
    alterations = [
        _Alteration(
            resource.resource_type,
            resource.resource_name,
            [_Change(config.name, AlterOperation.SET, config.value) for config in resource.configs],
            incremental=False,
        )
        for resource in request.resources
    ]
    answer = m.AlterConfigsResponse.AlterConfigsResourceResponse
    answers = await _alter_all(broker, context, alterations, answer, request.validate_only)
    return m.AlterConfigsResponse(responses=answers)


async def incremental_alter_configs(
    broker: Needs, context: Context, request: m.IncrementalAlterConfigsRequest
) -> m.IncrementalAlterConfigsResponse:
    """Change single settings of each resource; the others stay."""
    alterations = [
        _Alteration(
            resource.resource_type,
            resource.resource_name,
            [
                _Change(config.name, config.config_operation, config.value)
                for config in resource.configs
            ],
            incremental=True,
        )
        for resource in request.resources
    ]
    answer = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    answers = await _alter_all(broker, context, alterations, answer, request.validate_only)
    return m.IncrementalAlterConfigsResponse(responses=answers)


async def _alter_all(
    broker: Needs,
    context: Context,
    alterations: list[_Alteration],
    answer: Callable[..., _Answer],
    validate_only: bool,
) -> list[_Answer]:
    """The result of each resource; a refused one does not affect the others."""
    repeated = _repeated((each.resource_type, each.name) for each in alterations)
    answers = []
    for alteration in alterations:
        code, message = ErrorCode.NONE, None
        try:
            _refuse_repetitions(alteration, repeated)
            await _alter(broker, context, alteration, validate_only)
        except Rejected as rejected:
            code, message = rejected.code, rejected.message
        answers.append(
            answer(
                resource_type=alteration.resource_type,
                resource_name=alteration.name,
                error_code=code,
                error_message=message,
            )
        )
    return answers


def _repeated(keys: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    seen: set[tuple[int, str]] = set()
    repeated: set[tuple[int, str]] = set()
    for key in keys:
        (repeated if key in seen else seen).add(key)
    return repeated


def _refuse_repetitions(alteration: _Alteration, repeated: set[tuple[int, str]]) -> None:
    if (alteration.resource_type, alteration.name) in repeated:
        raise Rejected(
            ErrorCode.INVALID_REQUEST, f"{alteration.name[:100]!r} appears twice in the request"
        )
    if len({change.name for change in alteration.changes}) < len(alteration.changes):
        raise Rejected(ErrorCode.INVALID_REQUEST, "a setting appears twice for the same resource")


async def _alter(
    broker: Needs, context: Context, alteration: _Alteration, validate_only: bool
) -> None:
    resource_type = known_type(alteration.resource_type)
    if resource_type is ResourceType.BROKER_LOGGER:
        _alter_loggers(broker, context, alteration, validate_only)
        return
    if _is_unregistered_broker(broker, resource_type, alteration.name):
        _require_removals(alteration)
    else:
        check_resource(broker, resource_type, alteration.name)
    async with broker.dynamic_config.changing:
        overrides = _changed(broker, resource_type, alteration)
        if not _is_unregistered_broker(broker, resource_type, alteration.name):
            _check_overrides(broker, resource_type, alteration.name, overrides)
        # Checked after the settings, as in Kafka.
        if resource_type is ResourceType.TOPIC and alteration.name not in broker.metadata.topics:
            raise Rejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {alteration.name}"
            )
        before = broker.dynamic_config.overrides(resource_type, alteration.name)
        if not validate_only and overrides != before:
            await broker.controller.alter_configs(
                resource_type,
                alteration.name,
                overrides,
                built_on=before if alteration.incremental else None,
            )
            _log_change(context, resource_type, alteration.name, before, overrides)


def _is_unregistered_broker(broker: Needs, resource_type: ResourceType, name: str) -> bool:
    return (
        resource_type is ResourceType.BROKER
        and is_broker_id(name)
        and int(name) != broker.broker_id
        and int(name) not in broker.metadata.brokers
    )


def _require_removals(alteration: _Alteration) -> None:
    """Any broker removes settings of one that is down, such as the throttles of a finished move.

    Setting them stays with the broker itself: only it knows its file, which they must fit.
    """
    if not alteration.incremental or any(
        change.operation != AlterOperation.DELETE for change in alteration.changes
    ):
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            f"broker {alteration.name} is not registered; its settings can be removed, not set",
        )


def _alter_loggers(
    broker: Needs, context: Context, alteration: _Alteration, validate_only: bool
) -> None:
    if not alteration.incremental:
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            "AlterConfigs cannot change log levels; use IncrementalAlterConfigs",
        )
    check_resource(broker, ResourceType.BROKER_LOGGER, alteration.name)
    for change in alteration.changes:
        broker_loggers.check_change(*change)
    if validate_only:
        return
    for change in alteration.changes:
        broker_loggers.change(*change)
        _log.info(
            "%s %s",
            context.described_client(),
            f"set the level of logger {change.name} to {change.text}"
            if change.text
            else f"reset the level of logger {change.name} to its parent's level",
        )


# --- the new settings of a resource


def _changed(broker: Needs, resource_type: ResourceType, alteration: _Alteration) -> dict[str, str]:
    if not alteration.incremental:
        return {change.name: _text_of(change) for change in alteration.changes}
    overrides: dict[str, str] = broker.dynamic_config.overrides(resource_type, alteration.name)
    for change in alteration.changes:
        try:
            operation = AlterOperation(change.operation)
        except ValueError:
            raise Rejected(
                ErrorCode.INVALID_REQUEST, f"unknown operation {change.operation} for {change.name}"
            ) from None
        if operation is AlterOperation.DELETE:
            overrides.pop(change.name, None)
            continue
        text = _text_of(change)
        row = _row(resource_type, change.name)
        is_list = row is not None and row.kind == "list"
        if operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
            if row is None or not is_list:
                raise Rejected(
                    ErrorCode.INVALID_CONFIG,
                    f"{operation.name} is for lists, and {change.name} is not a list",
                )
            present = overrides.get(change.name)
            if present is None:
                present = _inherited_list(broker.config, resource_type, change.name, row)
            overrides[change.name] = _list_with(present, operation, text)
        elif is_list:
            items = split_list(text)
            # Keep a lone comma, which is refused later; dropping its empty items would make it
            # the empty list.
            overrides[change.name] = text if "" in items else ",".join(dict.fromkeys(items))
        else:
            overrides[change.name] = text
    return overrides


def _text_of(change: _Change) -> str:
    if change.text is None:
        raise Rejected(ErrorCode.INVALID_REQUEST, f"{change.name} needs a value")
    return change.text


def _row(resource_type: ResourceType, name: str) -> kafka.Row | None:
    if resource_type is ResourceType.BROKER:
        return row_of(name)
    return _TABLES[resource_type].get(name)


def _inherited_list(
    config: BrokerConfig, resource_type: ResourceType, name: str, row: kafka.Row
) -> str:
    """The list that APPEND and SUBTRACT start from if the resource has none of its own."""
    if resource_type is ResourceType.TOPIC and name in kafka.TOPIC_SYNONYMS:
        return config.text(kafka.TOPIC_SYNONYMS[name][0]) or ""
    if resource_type is ResourceType.BROKER:
        return config.text(name) or ""
    return row.default or ""


def _list_with(present: str, operation: AlterOperation, text: str) -> str:
    items = split_list(present)
    for item in split_list(text):
        if operation is AlterOperation.SUBTRACT:
            items = [kept for kept in items if kept != item]
        elif item not in items:
            items.append(item)
    return ",".join(items)


# --- checking and logging


def _check_overrides(
    broker: Needs, resource_type: ResourceType, name: str, overrides: Mapping[str, str]
) -> None:
    code = ErrorCode.INVALID_CONFIG
    try:
        if resource_type is ResourceType.TOPIC:
            for line in contradictions(check_topic_overrides(broker.config, overrides), name):
                _log.warning("%s", line)
        elif resource_type is ResourceType.BROKER:
            code = ErrorCode.INVALID_REQUEST
            check_dynamic(broker.config, overrides, for_all=not name)
        elif resource_type is ResourceType.GROUP:
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


def _log_change(
    context: Context,
    resource_type: ResourceType,
    name: str,
    before: Mapping[str, str],
    overrides: Mapping[str, str],
) -> None:
    resource = f"{resource_type.label} {name or '(all)'}"
    changed = [
        f"{setting}={_loggable(resource_type, setting, text)}"
        for setting, text in sorted(overrides.items())
        if before.get(setting) != text
    ]
    changed += [f"removed {setting}" for setting in sorted(before.keys() - overrides.keys())]
    _log.info(
        "%s altered configs of %s: %s", context.described_client(), resource, ", ".join(changed)
    )
    for line in without_effect(overrides, _TABLES[resource_type]):
        _log.warning("%s: %s", resource, line)


def _loggable(resource_type: ResourceType, name: str, text: str) -> str:
    row = _row(resource_type, name)
    return "(secret)" if row is None or row.kind == "password" else text
