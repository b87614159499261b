"""The broker's log lines as text and as JSON."""

import json
import logging
import sys

from headrace.cli.log_lines import JsonLines, TextLines


def record(message: str = "partition %s is full", *args: object, **fields: object):
    made = logging.LogRecord(
        "headrace.storage", logging.WARNING, __file__, 1, message, args or ("t-0",), None
    )
    made.created = 1_700_000_000.25
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_json_is_one_object_with_the_fields_of_the_line():
    line = JsonLines().format(record(topic="t", size=7))
    assert "\n" not in line
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "WARN",
        "logger": "headrace.storage",
        "message": "partition t-0 is full",
        "topic": "t",
        "size": 7,
    }


def test_text_is_time_level_logger_and_message():
    assert TextLines().format(record()) == (
        "2023-11-14T22:13:20.250Z WARN headrace.storage: partition t-0 is full"
    )


def test_an_exception_stays_in_its_json_line():
    try:
        raise RuntimeError("disk\ngone")
    except RuntimeError:
        failed = record()
        failed.exc_info = sys.exc_info()
    line = JsonLines().format(failed)
    assert "\n" not in line
    assert "RuntimeError: disk\ngone" in json.loads(line)["exception"]
    assert TextLines().format(failed).splitlines()[-2:] == ["RuntimeError: disk", "gone"]


def test_a_field_without_a_json_type_is_written_as_text():
    assert json.loads(JsonLines().format(record(path=sys.path.__class__)))["path"]
