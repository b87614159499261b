"""Config requests to the handlers of a broker that keeps its settings in a dictionary."""

import asyncio
from types import SimpleNamespace

from headrace.broker.context import Context
from headrace.broker.handlers.alter_configs import alter_configs, incremental_alter_configs
from headrace.broker.handlers.describe_configs import describe_configs
from headrace.model.config import BrokerConfig
from headrace.model.settings.resources import AlterOperation, ResourceType
from headrace.wire import messages as m
from headrace.wire import schema

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = ResourceType
SET, DELETE, APPEND, SUBTRACT = AlterOperation

CONTEXT = Context(32, 4, 1, "test", "PLAINTEXT", "127.0.0.1")


class KeptSettings:
    """The part of the controller service that stores settings, in a dictionary."""

    def __init__(self, broker):
        self.broker = broker
        self.file_config = broker.config
        self.kept = {kind: {} for kind in (TOPIC, BROKER, CLIENT_METRICS, GROUP)}
        self.changing = asyncio.Lock()

    def overrides(self, resource_type, name):
        return dict(self.kept[resource_type].get(name, {}))

    def broker_overrides(self, broker_id=None):
        return self.overrides(BROKER, "" if broker_id is None else str(broker_id))

    def names(self, resource_type):
        return sorted(name for name, kept in self.kept[resource_type].items() if kept)

    async def alter_configs(self, resource_type, name, overrides, *, built_on):
        assert built_on in (None, self.overrides(resource_type, name))
        await asyncio.sleep(0)
        self.kept[resource_type][name] = dict(overrides)
        dynamic = self.broker_overrides() | self.broker_overrides(self.broker.broker_id)
        self.broker.config = self.file_config.with_dynamic(dynamic)


def a_broker(values=None, topics=("orders",)):
    broker = SimpleNamespace(
        config=BrokerConfig.parse({"node.id": "1", **(values or {})}),
        broker_id=1,
        metadata=SimpleNamespace(topics=dict.fromkeys(topics), brokers={1: None}),
    )
    broker.controller = broker.dynamic_config = KeptSettings(broker)
    return broker


def described(broker, kind, name, keys=None, *, documentation=False, synonyms=True):
    request = m.DescribeConfigsRequest(
        resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    response = asyncio.run(describe_configs(broker, CONTEXT, request))
    for api_version in (1, 4):
        schema.encoder(m.DescribeConfigsResponse, api_version)(response, bytearray())
    return response.results[0]


def entry(broker, kind, name, key, **options):
    (found,) = described(broker, kind, name, [key], **options).configs
    return found


def synonyms(found):
    return [(place.name, place.value, place.source) for place in found.synonyms]


def incremental(broker, kind, name, *changes, validate_only=False):
    request = m.IncrementalAlterConfigsRequest(
        resources=[
            m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    m.IncrementalAlterConfigsRequest.AlterableConfig(
                        name=key, config_operation=operation, value=value
                    )
                    for key, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    answer = asyncio.run(incremental_alter_configs(broker, CONTEXT, request))
    return answer.responses[0]


def replaced(broker, kind, name, *settings, validate_only=False):
    request = m.AlterConfigsRequest(
        resources=[
            m.AlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    m.AlterConfigsRequest.AlterableConfig(name=key, value=value)
                    for key, value in settings
                ],
            )
        ],
        validate_only=validate_only,
    )
    return asyncio.run(alter_configs(broker, CONTEXT, request)).responses[0]
