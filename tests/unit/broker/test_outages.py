"""Another controller or the end of a session is answered with an error that clients retry."""

import pytest

from headrace.broker.outages import OUTAGES, as_rejection
from headrace.client.errors import RETRIABLE
from headrace.coordination.tree import SessionLost
from headrace.model.errors import ErrorCode, Fenced
from headrace.wire.api import SERVED, ApiKey


@pytest.mark.parametrize("outage", [Fenced("a newer controller"), SessionLost("/controller")])
@pytest.mark.parametrize("api_key", sorted(SERVED))
def test_every_api_has_an_error_that_clients_retry(api_key, outage):
    assert isinstance(outage, OUTAGES)
    assert as_rejection(api_key, outage).code in RETRIABLE


@pytest.mark.parametrize(
    ("api_key", "code"),
    [
        (ApiKey.CREATE_TOPICS, ErrorCode.NOT_CONTROLLER),
        (ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE),
        (ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_the_error_fits_the_api(api_key, code):
    rejection = as_rejection(api_key, Fenced("another broker has become controller"))
    assert rejection.code == code
    assert "another broker has become controller" in str(rejection)
