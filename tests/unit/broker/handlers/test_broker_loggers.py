"""Log levels are described and changed as config resources."""

import logging

import pytest

from headrace.model.errors import ErrorCode
from tests.fakes.config_requests import (
    APPEND,
    BROKER_LOGGER,
    DELETE,
    SET,
    a_broker,
    described,
    entry,
    incremental,
    replaced,
)


@pytest.fixture
def a_logger():
    logger, parent = logging.getLogger("headrace.storage"), logging.getLogger("headrace")
    levels = logger.level, parent.level
    yield logger
    logger.setLevel(levels[0])
    parent.setLevel(levels[1])  # otherwise later tests do not see log lines of level INFO


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
