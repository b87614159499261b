"""Every announced API exists, and every API has a name."""

from headrace.wire import messages as m
from headrace.wire.api import (
    ANNOUNCED,
    SERVED,
    ApiKey,
    api_name,
    is_flexible,
    is_served,
    request_class,
    response_class,
    what_is_not_served,
)
from headrace.wire.messages.tables import APIS


def test_every_api_has_a_key_under_its_name() -> None:
    assert {int(key) for key in ApiKey} == set(APIS)
    for key in ApiKey:
        assert key.name.replace("_", "").lower() == api_name(key).lower()


def test_every_announced_version_has_a_codec() -> None:
    for key, (first, last) in (ANNOUNCED | SERVED).items():
        _, oldest, newest, _ = APIS[key]
        assert oldest <= first <= last <= newest


def test_the_served_versions_are_those_of_kafka_plus_list_offsets_0() -> None:
    differing = {key for key in SERVED if SERVED[key] != ANNOUNCED[key]}
    assert differing == {ApiKey.LIST_OFFSETS}
    assert SERVED[ApiKey.LIST_OFFSETS] == (0, 11)
    assert SERVED[ApiKey.PRODUCE] == (0, 13)
    assert SERVED[ApiKey.INIT_PRODUCER_ID] == (0, 5)  # 6 is unstable


def test_a_version_is_served_only_within_its_range() -> None:
    assert not is_served(1, 3)
    assert is_served(1, 4)
    assert is_served(1, 18)
    assert not is_served(1, 19)
    assert not is_served(999, 0)


def test_the_log_names_an_unsupported_request() -> None:
    assert what_is_not_served(19, 1) == "CreateTopics version 1; versions 2 to 7 are supported"
    assert what_is_not_served(55, 2) == "DescribeQuorum (API key 55), which is not supported"
    assert "999" in what_is_not_served(999, 0)


def test_flexible_versions_begin_where_the_definitions_begin_them() -> None:
    assert not is_flexible(ApiKey.METADATA, 8)
    assert is_flexible(ApiKey.METADATA, 9)
    assert not is_flexible(ApiKey.SASL_HANDSHAKE, 1)
    assert not is_flexible(999, 0)


def test_classes_are_found_by_key() -> None:
    assert request_class(3) is m.MetadataRequest
    assert response_class(ApiKey.FETCH) is m.FetchResponse
