"""The format of the broker's log lines: text, or one JSON object per line."""

import json
import logging
import sys
import time

# Kafka's names and Python's.
LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
}
FORMATS = ("text", "json")

# Python's names of log levels, as Kafka spells them.
KAFKA_LEVEL_NAMES = {"WARNING": "WARN", "CRITICAL": "FATAL"}

# The attributes of every record; any other one was passed as ``extra`` and becomes a field.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """``ts``, ``level``, ``logger``, ``message``, and the fields passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(record.created),
            "level": _level(record),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OWN_ATTRIBUTES:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Time, level, logger and message; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        moment, level = _timestamp(record.created), _level(record)
        text = f"{moment} {level} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def set_up(log_format: str, log_level: str) -> None:
    """Send all log lines of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=LEVELS[log_level], handlers=[handler])


def _level(record: logging.LogRecord) -> str:
    return KAFKA_LEVEL_NAMES.get(record.levelname, record.levelname)


def _timestamp(created: float) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{seconds}.{int(created % 1 * 1000):03d}Z"
