"""Config resources are listed by type."""

from headrace.broker.handlers.config_resources import list_config_resources
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.config_requests import CLIENT_METRICS, CONTEXT, SET, TOPIC, a_broker, incremental


def listed(broker, *kinds, api_version=1):
    request = m.ListConfigResourcesRequest(resource_types=list(kinds))
    context = CONTEXT._replace(api_key=74, api_version=api_version)
    return list_config_resources(broker, context, request)


def test_config_resources_are_listed_by_type():
    broker = a_broker()
    incremental(broker, CLIENT_METRICS, "s", ("interval.ms", SET, "1000"))
    found = {(each.resource_type, each.resource_name) for each in listed(broker).config_resources}
    assert found == {(8, "1"), (4, "1"), (2, "orders"), (16, "s")}
    (topic,) = listed(broker, TOPIC).config_resources
    assert (topic.resource_name, topic.resource_type) == ("orders", TOPIC)
    (metrics,) = listed(broker, api_version=0).config_resources
    assert metrics.resource_type == CLIENT_METRICS
    assert listed(broker, 64).error_code == ErrorCode.UNSUPPORTED_VERSION
