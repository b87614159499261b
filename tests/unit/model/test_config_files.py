"""The tables of settings are consistent, and files of any values are read or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.config import BrokerConfig
from headrace.model.settings import descriptions, kafka, legacy_names
from headrace.model.settings.headrace import ADDED, NODE_DEFAULTS
from headrace.model.settings.values import parse_value, value_to_text


@given(
    st.dictionaries(
        st.sampled_from(sorted({*kafka.BROKER, *legacy_names.BROKER})), st.text(max_size=8)
    )
)
def test_any_values_are_accepted_or_refused_by_name(values):
    from headrace.model.errors import ConfigError

    try:
        BrokerConfig.parse(values)
    except ConfigError as refused:
        assert any(name in str(refused) for name in (*values, *kafka.BROKER))


TABLES = [kafka.BROKER, kafka.TOPIC, kafka.GROUP, kafka.CLIENT_METRICS, kafka.DYNAMIC_ONLY, ADDED]


@pytest.mark.parametrize("table", TABLES)
def test_every_default_is_valid_and_prints_as_it_is_written(table):
    for name, row in table.items():
        for text in {row.default, NODE_DEFAULTS.get(name)} - {None}:
            assert value_to_text(parse_value(name, text, row)) == text, name


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_explained(table):
    for name, row in table.items():
        assert row.no_effect in descriptions.REASONS or descriptions.meaning_of(name), name


def test_every_old_name_has_a_successor_or_a_reason():
    for table, present in ((legacy_names.BROKER, kafka.BROKER), (legacy_names.TOPIC, kafka.TOPIC)):
        for name, (kind, default, successors, reason_key) in table.items():
            assert name not in present, name
            assert bool(successors) != bool(reason_key), name
            assert all(successor in present for successor, _ in successors), name
            assert not reason_key or reason_key in descriptions.REASONS, name
            if default is not None:
                parse_value(name, default, kafka.Row(kind, None, None, "", ""))


def test_descriptions_are_of_existing_settings():
    known = {*kafka.BROKER, *kafka.TOPIC, *kafka.DYNAMIC_ONLY, *ADDED}
    assert descriptions.MEANINGS.keys() <= known
    assert descriptions.OLD_DEFAULTS.keys() <= known


def test_every_reason_is_used():
    used = {row.no_effect for table in TABLES for row in table.values()}
    used |= {
        row[3] for table in (legacy_names.BROKER, legacy_names.TOPIC) for row in table.values()
    }
    assert descriptions.REASONS.keys() - {"listener"} <= used  # used for a prefix, not for a row


def test_every_synonym_of_a_topic_or_group_setting_is_a_broker_setting():
    for name, synonyms in kafka.TOPIC_SYNONYMS.items():
        assert name in kafka.TOPIC
        assert all(synonym in kafka.BROKER for synonym in synonyms)
    assert all(synonym in kafka.BROKER for synonym in kafka.GROUP_SYNONYMS.values())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5, "0.5"),
        (100.0, "100.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e-4, "1.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("inf"), "Infinity"),
        (0.0, "0.0"),
    ],
)
def test_numbers_are_printed_as_java_prints_them(number, text):
    assert value_to_text(number) == text
