"""Config requests: sources, synonyms, changes, errors, log levels."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from headrace.broker.context import Context
from headrace.broker.handlers.alter_configs import alter_configs, incremental_alter_configs
from headrace.broker.handlers.config_resources import list_config_resources
from headrace.broker.handlers.describe_configs import describe_configs
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
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


# --- describing


def test_a_topic_lists_every_setting_with_the_brokers_as_default():
    result = described(a_broker(), TOPIC, "orders")

    assert result.error_code == 0
    assert result.error_message == ""
    assert len(result.configs) == 33
    found = entry(a_broker(), TOPIC, "orders", "max.message.bytes")
    assert (found.value, found.config_source, found.is_default) == ("1048588", 5, True)
    assert (found.config_type, found.read_only, found.is_sensitive) == (3, False, False)
    assert synonyms(found) == [("message.max.bytes", "1048588", 5)]
    assert found.documentation is None


def test_the_effective_value_is_the_first_synonym():
    broker = a_broker({"log.cleaner.backoff.ms": "1", "log.cleaner.delete.retention.ms": "5"})
    incremental(broker, BROKER, "", ("log.cleaner.delete.retention.ms", SET, "6"))
    incremental(broker, BROKER, "1", ("log.cleaner.delete.retention.ms", SET, "7"))
    twins = [
        ("log.cleaner.delete.retention.ms", "7", 2),
        ("log.cleaner.delete.retention.ms", "6", 3),
        ("log.cleaner.delete.retention.ms", "5", 4),
        ("log.cleaner.delete.retention.ms", "86400000", 5),
    ]
    found = entry(broker, TOPIC, "orders", "delete.retention.ms")
    assert (found.value, found.config_source) == ("7", 2)
    assert synonyms(found) == twins

    incremental(broker, TOPIC, "orders", ("delete.retention.ms", SET, "8"))
    found = entry(broker, TOPIC, "orders", "delete.retention.ms")
    assert (found.value, found.config_source) == ("8", 1)
    assert synonyms(found) == [("delete.retention.ms", "8", 1), *twins]
    assert entry(broker, BROKER, "1", "log.cleaner.delete.retention.ms").value == "7"
    assert synonyms(entry(broker, TOPIC, "orders", "delete.retention.ms", synonyms=False)) == []


def test_a_coarser_unit_from_the_file_is_named_as_the_source():
    broker = a_broker({"log.retention.hours": "2"})
    found = entry(broker, TOPIC, "orders", "retention.ms")

    assert (found.value, found.config_source) == ("7200000", 4)
    assert ("log.retention.hours", "2", 4) in synonyms(found)
    # Without one given, Kafka names no source for a default in another unit.
    untouched = entry(a_broker(), TOPIC, "orders", "retention.ms")
    assert (untouched.value, untouched.config_source) == ("604800000", 5)
    assert synonyms(untouched) == []
    assert entry(broker, BROKER, "1", "log.retention.ms").value is None


def test_a_broker_lists_every_setting_and_which_can_change():
    broker = a_broker({"ssl.key.password": "secret", "log.dirs": "/a,/b"})
    result = described(broker, BROKER, "1")
    by_name = {found.name: found for found in result.configs}

    assert len(by_name) > 330
    assert "advertised.listeners" in by_name
    assert "log.initial.task.delay.ms" not in by_name  # Kafka never lists its internal ones
    assert by_name["num.partitions"].read_only
    assert not by_name["message.max.bytes"].read_only
    assert by_name["log.dirs"].value == "/a,/b"
    assert by_name["log.dirs"].config_type == 7
    assert (by_name["node.id"].value, by_name["broker.id"].value) == ("1", "1")
    assert by_name["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"
    secret = by_name["ssl.key.password"]
    assert (secret.value, secret.is_sensitive, secret.config_source) == (None, True, 4)
    assert synonyms(secret) == [("ssl.key.password", None, 4)]


def test_a_broker_with_the_default_id_lists_it_under_both_names():
    broker = a_broker()
    broker.config = BrokerConfig.parse({})
    for name in ("node.id", "broker.id"):
        found = entry(broker, BROKER, "1", name)
        assert (found.value, found.config_source) == ("1", 5)


def test_the_settings_of_all_brokers_are_only_those_that_are_set():
    broker = a_broker()
    assert described(broker, BROKER, "").configs == []
    incremental(broker, BROKER, "", ("message.max.bytes", SET, "2000000"))
    (found,) = described(broker, BROKER, "").configs
    assert (found.name, found.value, found.config_source) == ("message.max.bytes", "2000000", 3)


@pytest.mark.parametrize("keys", [["retention.ms", "no.such.name"], ["retention.ms"]])
def test_only_the_settings_asked_for_are_listed(keys):
    found = described(a_broker(), TOPIC, "orders", keys).configs
    assert [each.name for each in found] == ["retention.ms"]


def test_an_empty_list_of_names_means_all_as_in_kafka():
    assert len(described(a_broker(), TOPIC, "orders", []).configs) == 33


def test_documentation_is_included_on_request():
    broker = a_broker()
    assert entry(broker, TOPIC, "orders", "retention.ms", documentation=True).documentation
    unserved = entry(broker, BROKER, "1", "num.io.threads", documentation=True).documentation
    assert unserved.startswith("no effect: ")


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name!", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "9" * 5000, ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (64, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_invalid_resource_has_kafkas_code(kind, name, code):
    result = described(a_broker(), kind, name)
    assert (result.error_code, result.configs) == (code, [])


def test_one_unknown_resource_type_refuses_the_whole_request():
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    request = m.DescribeConfigsRequest(
        resources=[
            resource(resource_type=TOPIC, resource_name="orders"),
            resource(resource_type=99, resource_name="x"),
        ]
    )
    results = asyncio.run(describe_configs(a_broker(), CONTEXT, request)).results
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_groups_and_client_metrics_list_their_own_value_before_the_default():
    broker = a_broker()
    assert (
        incremental(broker, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")).error_code
        == 0
    )
    found = entry(broker, GROUP, "g", "consumer.session.timeout.ms")
    assert synonyms(found) == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    assert incremental(broker, CLIENT_METRICS, "s", ("interval.ms", SET, "1000")).error_code == 0
    found = entry(broker, CLIENT_METRICS, "s", "interval.ms")
    assert (found.value, found.config_source) == ("1000", 7)
    assert entry(broker, CLIENT_METRICS, "s", "match").value == ""


# --- altering


def test_set_and_delete_change_one_setting_and_leave_the_others():
    broker = a_broker()
    incremental(broker, TOPIC, "orders", ("retention.ms", SET, "1"), ("segment.ms", SET, "2"))
    incremental(broker, TOPIC, "orders", ("retention.ms", DELETE, None))
    incremental(broker, TOPIC, "orders", ("never.set", DELETE, None))
    assert broker.dynamic_config.overrides(TOPIC, "orders") == {"segment.ms": "2"}


def test_lists_are_appended_to_and_subtracted_from():
    broker = a_broker({"log.cleanup.policy": "compact"})
    for operation, value, now in [
        (APPEND, "delete", "compact,delete"),  # onto what the broker gives
        (APPEND, "delete", "compact,delete"),
        (SUBTRACT, "compact", "delete"),
        (SUBTRACT, "nonsense", "delete"),
        (SUBTRACT, "delete", ""),
        (SET, "delete,delete", "delete"),
    ]:
        answer = incremental(broker, TOPIC, "orders", ("cleanup.policy", operation, value))
        assert (answer.error_code, answer.error_message) == (0, None)
        assert broker.dynamic_config.overrides(TOPIC, "orders")["cleanup.policy"] == now


def test_a_single_comma_is_not_an_empty_list():
    broker = a_broker()
    answer = incremental(broker, TOPIC, "orders", ("cleanup.policy", SET, ","))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert replaced(broker, TOPIC, "orders", ("cleanup.policy", ",")).error_code == (
        ErrorCode.INVALID_CONFIG
    )
    assert broker.dynamic_config.overrides(TOPIC, "orders") == {}


def test_alter_replaces_all_settings():
    broker = a_broker()
    incremental(broker, TOPIC, "orders", ("segment.ms", SET, "2"))
    assert replaced(broker, TOPIC, "orders", ("retention.ms", "9")).error_code == 0
    assert broker.dynamic_config.overrides(TOPIC, "orders") == {"retention.ms": "9"}
    replaced(broker, TOPIC, "orders")
    assert broker.dynamic_config.overrides(TOPIC, "orders") == {}


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "orders", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", [("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "orders", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (
            TOPIC,
            "orders",
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
        ),
        (TOPIC, "absent", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "absent", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "bad name!", [("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", [("retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("num.partitions", SET, "3")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("message.max.bytes", SET, "x")], ErrorCode.INVALID_REQUEST),
        (BROKER, "2", [("message.max.bytes", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "", [("cordoned.log.dirs", SET, "/a")], ErrorCode.INVALID_REQUEST),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], ErrorCode.INVALID_CONFIG),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "s", [("interval.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "s", [("no.such", SET, "1")], ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "s", [("match", SET, "zz")], ErrorCode.INVALID_CONFIG),
        (99, "x", [("a", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_that_cannot_be_made_has_kafkas_code_and_changes_nothing(
    kind, name, changes, code
):
    broker = a_broker()
    answer = incremental(broker, kind, name, *changes)

    assert answer.error_code == code
    assert answer.error_message
    assert all(not kept for kept in broker.controller.kept.values())


def test_validate_only_checks_and_changes_nothing():
    broker = a_broker()
    assert (
        incremental(
            broker, TOPIC, "orders", ("retention.ms", SET, "1"), validate_only=True
        ).error_code
        == 0
    )
    assert (
        replaced(broker, TOPIC, "orders", ("retention.ms", "x"), validate_only=True).error_code
        == ErrorCode.INVALID_CONFIG
    )
    assert broker.controller.kept[TOPIC] == {}


def test_a_resource_named_twice_is_refused_both_times():
    resource = m.AlterConfigsRequest.AlterConfigsResource
    request = m.AlterConfigsRequest(
        resources=[resource(resource_type=TOPIC, resource_name="orders") for _ in range(2)]
    )
    answers = asyncio.run(alter_configs(a_broker(), CONTEXT, request)).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2


def test_one_refused_resource_does_not_keep_the_others_from_changing():
    broker = a_broker(topics=("a", "b"))
    request_type = m.IncrementalAlterConfigsRequest
    change = request_type.AlterableConfig(name="retention.ms", config_operation=SET, value="5")
    request = request_type(
        resources=[
            request_type.AlterConfigsResource(
                resource_type=TOPIC, resource_name=name, configs=[change]
            )
            for name in ("a", "absent", "b")
        ]
    )
    answers = asyncio.run(incremental_alter_configs(broker, CONTEXT, request)).responses
    assert [answer.error_code for answer in answers] == [0, 3, 0]
    assert broker.dynamic_config.overrides(TOPIC, "b") == {"retention.ms": "5"}


def test_concurrent_changes_are_all_stored():
    broker = a_broker()
    request_type = m.IncrementalAlterConfigsRequest

    def request(name):
        change = request_type.AlterableConfig(name=name, config_operation=SET, value="5")
        return request_type(
            resources=[
                request_type.AlterConfigsResource(
                    resource_type=TOPIC, resource_name="orders", configs=[change]
                )
            ]
        )

    async def both():
        await asyncio.gather(
            *(
                incremental_alter_configs(broker, CONTEXT, request(name))
                for name in ("retention.ms", "segment.ms")
            )
        )

    asyncio.run(both())
    assert broker.dynamic_config.overrides(TOPIC, "orders") == {
        "retention.ms": "5",
        "segment.ms": "5",
    }


def test_a_setting_without_effect_is_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="headrace"):
        incremental(a_broker(), TOPIC, "orders", ("local.retention.ms", SET, "5"))
    assert "topic orders: local.retention.ms has no effect" in caplog.text


# --- loggers


@pytest.fixture
def a_logger():
    logger = logging.getLogger("headrace.storage")
    yield logger
    logger.setLevel(logging.NOTSET)


def test_log_levels_can_be_listed_set_and_deleted(a_logger):
    broker = a_broker()
    root_level = logging.getLogger("headrace").getEffectiveLevel()
    a_logger.setLevel(logging.WARNING)
    found = entry(broker, BROKER_LOGGER, "1", a_logger.name)
    assert (found.value, found.config_source, found.read_only) == ("WARN", 6, False)
    assert described(broker, BROKER_LOGGER, "1").configs[0].name == "root"

    incremental(broker, BROKER_LOGGER, "1", (a_logger.name, SET, "TRACE"))
    assert a_logger.isEnabledFor(logging.DEBUG)
    assert entry(broker, BROKER_LOGGER, "1", a_logger.name).value == "TRACE"
    incremental(broker, BROKER_LOGGER, "1", (a_logger.name, DELETE, None))
    assert a_logger.level == logging.NOTSET
    assert a_logger.getEffectiveLevel() == root_level


@pytest.mark.parametrize("parent", ["headrace", "root"])
def test_the_level_of_a_parent_logger_can_be_set(a_logger, parent):
    broker = a_broker()
    before = a_logger.getEffectiveLevel()
    assert entry(broker, BROKER_LOGGER, "1", parent).config_source == 6
    incremental(broker, BROKER_LOGGER, "1", (parent, SET, "ERROR"))
    assert a_logger.getEffectiveLevel() == logging.ERROR
    before_name = logging.getLevelName(before).replace("WARNING", "WARN")
    incremental(broker, BROKER_LOGGER, "1", (parent, SET, before_name))
    assert a_logger.getEffectiveLevel() == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("headrace.no.such.logger", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (("root", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_level_is_refused_before_any_is_set(change, code, a_logger):
    answer = incremental(a_broker(), BROKER_LOGGER, "1", (a_logger.name, SET, "ERROR"), change)
    assert answer.error_code == code
    assert a_logger.level == logging.NOTSET


def test_alter_configs_cannot_change_log_levels():
    answer = replaced(a_broker(), BROKER_LOGGER, "1", ("root", "INFO"))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


# --- listing


def listed(broker, *kinds, api_version=1):
    request = m.ListConfigResourcesRequest(resource_types=list(kinds))
    context = CONTEXT._replace(api_key=74, api_version=api_version)
    return list_config_resources(broker, context, request)


def test_config_resources_are_listed_by_type():
    broker = a_broker()
    incremental(broker, CLIENT_METRICS, "s", ("interval.ms", SET, "1000"))
    found = {(each.resource_type, each.resource_name) for each in listed(broker).config_resources}
    assert found == {(8, "1"), (4, "1"), (2, "orders"), (16, "s")}
    (topic,) = listed(broker, TOPIC).config_resources
    assert (topic.resource_name, topic.resource_type) == ("orders", TOPIC)
    (metrics,) = listed(broker, api_version=0).config_resources
    assert metrics.resource_type == CLIENT_METRICS
    assert listed(broker, 64).error_code == ErrorCode.UNSUPPORTED_VERSION
