"""The suggestion for a misspelled name."""

import pytest

from headrace.model.spelling import did_you_mean

KNOWN = ["failOnDataLoss", "startingOffsets", "subscribe"]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("failondatalos", " (did you mean failOnDataLoss?)"),
        ("subscrbie", " (did you mean subscribe?)"),
        ("compression", ""),
        ("s" * 100_000, ""),
    ],
)
def test_only_a_similar_name_is_suggested(name, suggestion):
    assert did_you_mean(name, KNOWN) == suggestion
