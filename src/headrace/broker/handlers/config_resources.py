"""Config resources: checks of their types and names, and ListConfigResources."""

from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsBrokerId, NeedsConfig, NeedsMetadata
from headrace.core.topics import check_name
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.settings.resources import ResourceType
from headrace.wire import messages as m


class Needs(NeedsBrokerId, NeedsConfig, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


def list_config_resources(
    broker: Needs, context: Context, request: m.ListConfigResourcesRequest
) -> m.ListConfigResourcesResponse:
    """All resources that have or can have settings. Version 0 lists client metrics only."""
    wanted = set(request.resource_types)
    if context.api_version == 0:
        wanted = {ResourceType.CLIENT_METRICS}
    if wanted - set(ResourceType):
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    brokers = [str(broker_id) for broker_id in broker.metadata.brokers]
    names = {
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.BROKER: brokers,
        ResourceType.TOPIC: list(broker.metadata.topics),
        ResourceType.GROUP: broker.dynamic_config.names(ResourceType.GROUP),
        ResourceType.CLIENT_METRICS: broker.dynamic_config.names(ResourceType.CLIENT_METRICS),
    }
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(
                resource_name=name, resource_type=resource_type
            )
            for resource_type, all_names in names.items()
            if not wanted or resource_type in wanted
            for name in all_names
        ]
    )


def known_type(number: int) -> ResourceType:
    """The resource type with this number. Raises Rejected if there is none."""
    try:
        return ResourceType(number)
    except ValueError:
        raise Rejected(
            ErrorCode.INVALID_REQUEST, f"resources of type {number} have no settings"
        ) from None


def check_resource(broker: Needs, resource_type: ResourceType, name: str) -> None:
    """Raise Rejected if a resource of this name cannot have settings."""
    if resource_type is ResourceType.TOPIC:
        if not name:
            raise Rejected(
                ErrorCode.INVALID_REQUEST, "there are no settings for all topics; name a topic"
            )
        check_name(name)
    elif resource_type is ResourceType.BROKER_LOGGER:
        check_broker_id(broker, name)
    elif resource_type is ResourceType.BROKER:
        if name:  # without a name: all brokers
            check_broker_id(broker, name)
    elif not name:
        raise Rejected(ErrorCode.INVALID_REQUEST, f"the {resource_type.label} needs a name")


def is_broker_id(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(name) < 20


def check_broker_id(broker: Needs, name: str) -> None:
    """Raise Rejected unless ``name`` is the id of this broker."""
    if not is_broker_id(name):
        raise Rejected(ErrorCode.INVALID_REQUEST, f"{name[:100]!r} is not a broker id")
    if int(name) != broker.broker_id:
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.broker_id}; send the request to broker {name}",
        )
