"""Java's properties syntax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import ConfigError
from headrace.model.settings.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a  :  b", {"a": "b"}),
        ("a==b", {"a": "=b"}),
        ("empty=", {"empty": ""}),
        ("# note\n! note\n\n   \na=1", {"a": "1"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("list=one,\\\n    two,\\\n    three", {"list": "one,two,three"}),
        ("path=c:\\\\data\\\\", {"path": "c:\\data\\"}),
        ("path=two\\\\\nb=1", {"path": "two\\", "b": "1"}),
        ("key\\ with\\:signs=v", {"key with:signs": "v"}),
        ("tab=\\t|\\n|\\u0041|\\z", {"tab": "\t|\n|A|z"}),
        ("last=\\", {"last": ""}),
        ("a=1\\\n# not a note", {"a": "1# not a note"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text, values):
    assert parse_properties(text, "server.properties") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# note\na=1\n broken line", '3: expected KEY=VALUE, got "broken line"'),
        ("lonely", '1: expected KEY=VALUE, got "lonely"'),
        ("a=1\\\n  2\n= 5", '3: expected KEY=VALUE, got "= 5"'),
    ],
)
def test_a_line_without_a_name_or_a_separator_is_refused_by_its_number(text, message):
    with pytest.raises(ConfigError) as refused:
        parse_properties(text, "server.properties")
    assert str(refused.value) == f"server.properties:{message}"


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    try:
        parsed = parse_properties(text, "server.properties")
    except ConfigError:
        return
    assert all(isinstance(part, str) for pair in parsed.items() for part in pair)
