"""Java's properties syntax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.settings.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a  :  b", {"a": "b"}),
        ("a==b", {"a": "=b"}),
        ("empty", {"empty": ""}),
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
    assert parse_properties(text) == values


@given(st.text())
def test_any_text_can_be_parsed(text):
    parsed = parse_properties(text)
    assert all(isinstance(part, str) for pair in parsed.items() for part in pair)
