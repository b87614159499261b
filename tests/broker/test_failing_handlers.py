"""A handler that raises: the client gets an error code, and the broker goes on."""

import pytest

from headrace.broker import handlers
from headrace.model.errors import ErrorCode, Rejected
from headrace.testing import Broker
from headrace.wire.api import SERVED, ApiKey, response_class
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient
from tests.fakes.requests import codes_in, filled

REFUSAL = Rejected(ErrorCode.POLICY_VIOLATION, "not today")


@pytest.mark.parametrize("fault", [REFUSAL, ZeroDivisionError("a bug")], ids=["refusal", "bug"])
def test_a_client_gets_the_error_of_a_handler_that_raises(monkeypatch, fault):
    async def later(*_):
        raise fault

    def at_once(*_):
        raise fault

    expected = ErrorCode.POLICY_VIOLATION if fault is REFUSAL else ErrorCode.UNKNOWN_SERVER_ERROR
    broker = Broker()
    broker.start()
    try:
        for broken in (at_once, later):
            for api_key in filter(SERVED.__contains__, handlers.HANDLERS):
                monkeypatch.setattr(handlers, "handler", lambda _, broken=broken: broken)
                version = SERVED[api_key][1]
                with RawClient(broker.bootstrap_servers) as client:
                    answer = client.ask(api_key, version, filled(api_key, version))
                assert isinstance(answer, response_class(api_key))
                assert expected in codes_in(answer), ApiKey(api_key).name
    finally:
        Inside(broker).node.bugs.clear()  # they were asked for
        broker.stop()
