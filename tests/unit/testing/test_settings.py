"""The ``config`` argument of the test kit: Python values become Kafka's text, or are refused."""

from pathlib import Path

import pytest

from headrace.testing.settings import as_text


def test_python_values_become_the_text_that_kafka_reads():
    settings = {"a": "x", "b": 5, "c": 0.5, "d": True, "e": Path("/data")}
    assert as_text("config", settings) == {
        "a": "x",
        "b": "5",
        "c": "0.5",
        "d": "true",
        "e": "/data",
    }


@pytest.mark.parametrize(
    "config, message",
    [
        ("log.dirs", "config: expected a mapping such as .*; got 'log.dirs'"),
        ([("log.segment.bytes", 1)], "config: expected a mapping such as"),
        ({5: "x"}, "config: expected the names of settings as strings; got 5"),
        ({"log.dirs": None}, r"config\['log.dirs'\]: expected a string, .*; got None"),
        ({"log.dirs": ["/a"]}, r"config\['log.dirs'\]: expected a string, .*; got \['/a'\]"),
    ],
)
def test_a_wrong_type_is_refused_with_the_argument_named(config, message):
    with pytest.raises(TypeError, match=message):
        as_text("config", config)
