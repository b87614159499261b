"""Log levels as config resources: the Python loggers of Headrace under Kafka's level names.

Levels belong to the running process; they are not stored.
"""

import logging

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.loggers import LOGGERS
from headrace.model.settings.resources import AlterOperation

# Python has no TRACE, so it gets a number below DEBUG.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_ROOT_LOGGER = "root"  # the parent of all loggers of Headrace
_OUR_LOGGERS = "headrace"


def levels() -> dict[str, str]:
    """The effective level of each logger, by name."""
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in _logger_names()}


def check_change(name: str, operation: int, level: str | None) -> None:
    """Raise Rejected if the level of this logger cannot be changed like this."""
    if operation not in (AlterOperation.SET, AlterOperation.DELETE):
        raise Rejected(ErrorCode.INVALID_REQUEST, f"{name}: a log level can only be set or deleted")
    if name not in _logger_names():
        raise Rejected(ErrorCode.INVALID_CONFIG, f"there is no logger {name}")
    if operation == AlterOperation.DELETE and name == _ROOT_LOGGER:
        raise Rejected(ErrorCode.INVALID_REQUEST, "the level of the root logger cannot be deleted")
    if operation == AlterOperation.SET and level not in _LEVELS:
        raise Rejected(
            ErrorCode.INVALID_CONFIG, f"{name}={level}: expected one of {', '.join(_LEVELS)}"
        )


def change(name: str, operation: int, level: str | None) -> None:
    """Set the level of a logger, or let it inherit the level of its parent."""
    deleted = operation == AlterOperation.DELETE
    _logger(name).setLevel(logging.NOTSET if deleted else _LEVELS[level or ""])


def _logger_names() -> list[str]:
    """The loggers of Headrace, and the root, whose level applies to loggers without their own."""
    return [_ROOT_LOGGER, _OUR_LOGGERS, *LOGGERS]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_OUR_LOGGERS if name == _ROOT_LOGGER else name)


def _level_name(level: int) -> str:
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")
