"""The names of group states."""

from confluent_kafka import ConsumerGroupState

from headrace.cli.groups import state_name


def test_states_have_kafkas_names():
    assert {state_name(state) for state in ConsumerGroupState} == {
        "Unknown",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
        "Empty",
    }
