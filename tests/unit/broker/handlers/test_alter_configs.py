"""Changed settings: operations, checks and errors."""

import asyncio
import logging

import pytest

from headrace.broker.handlers.alter_configs import alter_configs, incremental_alter_configs
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.config_requests import (
    APPEND,
    BROKER,
    CLIENT_METRICS,
    CONTEXT,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    a_broker,
    incremental,
    replaced,
)


def test_set_and_delete_change_one_setting_and_leave_the_others():
    broker = a_broker()
    incremental(broker, TOPIC, "orders", ("retention.ms", SET, "1"), ("segment.ms", SET, "2"))
    incremental(broker, TOPIC, "orders", ("retention.ms", DELETE, None))
    incremental(broker, TOPIC, "orders", ("never.set", DELETE, None))
    assert broker.controller.overrides(TOPIC, "orders") == {"segment.ms": "2"}


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
        assert broker.controller.overrides(TOPIC, "orders")["cleanup.policy"] == now


def test_a_single_comma_is_not_an_empty_list():
    broker = a_broker()
    answer = incremental(broker, TOPIC, "orders", ("cleanup.policy", SET, ","))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert replaced(broker, TOPIC, "orders", ("cleanup.policy", ",")).error_code == (
        ErrorCode.INVALID_CONFIG
    )
    assert broker.controller.overrides(TOPIC, "orders") == {}


def test_alter_replaces_all_settings():
    broker = a_broker()
    incremental(broker, TOPIC, "orders", ("segment.ms", SET, "2"))
    assert replaced(broker, TOPIC, "orders", ("retention.ms", "9")).error_code == 0
    assert broker.controller.overrides(TOPIC, "orders") == {"retention.ms": "9"}
    replaced(broker, TOPIC, "orders")
    assert broker.controller.overrides(TOPIC, "orders") == {}


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
    assert broker.controller.overrides(TOPIC, "b") == {"retention.ms": "5"}


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
    assert broker.controller.overrides(TOPIC, "orders") == {"retention.ms": "5", "segment.ms": "5"}


def test_a_setting_without_effect_is_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="headrace"):
        incremental(a_broker(), TOPIC, "orders", ("local.retention.ms", SET, "5"))
    assert "topic orders: local.retention.ms has no effect" in caplog.text


def test_the_log_names_the_client_and_the_changed_settings(caplog):
    broker = a_broker()
    with caplog.at_level(logging.INFO, logger="headrace"):
        incremental(broker, TOPIC, "orders", ("retention.ms", SET, "5"), ("segment.ms", SET, "7"))
        incremental(broker, TOPIC, "orders", ("retention.ms", DELETE, None))
    client = CONTEXT.described_client()
    assert [record.getMessage() for record in caplog.records] == [
        f"{client} altered configs of topic orders: retention.ms=5, segment.ms=7",
        f"{client} altered configs of topic orders: removed retention.ms",
    ]


def test_the_log_hides_passwords(caplog):
    with caplog.at_level(logging.INFO, logger="headrace"):
        incremental(a_broker(), BROKER, "1", ("sasl.jaas.config", SET, "hunter2"))
    assert "sasl.jaas.config=(secret)" in caplog.text and "hunter2" not in caplog.text
