"""Described settings: values, sources, synonyms and errors."""

import asyncio

import pytest

from headrace.broker.handlers.describe_configs import describe_configs
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.config_requests import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    CONTEXT,
    GROUP,
    SET,
    TOPIC,
    a_broker,
    described,
    entry,
    incremental,
    synonyms,
)


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
