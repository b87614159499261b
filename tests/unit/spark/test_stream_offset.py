"""The offset of a stream in the checkpoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import TopicPartition
from headrace.spark.failures import PipelineError
from headrace.spark.stream_offset import StreamOffset, parse_offset

PLACES = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 3))
OFFSETS = st.dictionaries(PLACES, st.integers(0, 2**60))


@given(OFFSETS, st.text(), st.text(), st.none() | OFFSETS)
def test_an_offset_survives_the_checkpoint(offsets, query, group, start):
    ids = {place.topic: bytes(range(16)) for place in offsets}
    offset = StreamOffset(offsets, query, group, ids, start)

    assert parse_offset(offset.to_json()) == offset


def test_a_checkpoint_of_sparks_kafka_source_is_read():
    assert parse_offset({"a": {"0": 7}}) == StreamOffset({TopicPartition("a", 0): 7})


@pytest.mark.parametrize(
    "edited",
    [
        {"t": {"0": "12"}},
        {"t": {"zero": 12}},
        {"t": {"0": None}},
        {"t": 12},
        [12],
        {"t": {"0": 12}, "#headrace": 5},
        {"t": {"0": 12}, "#headrace": {"ids": {"t": "no id"}}},
    ],
)
def test_a_checkpoint_that_was_edited_wrongly_is_refused_with_the_right_form(edited):
    with pytest.raises(PipelineError, match="the checkpoint must hold offsets like"):
        parse_offset(edited)
