"""The throttles of replication: their settings."""

import pytest

from headrace.broker.replication.throttles import names_replica, throttle
from headrace.model.config import BrokerConfig
from tests.fakes.standin import in_loop


@pytest.mark.parametrize(
    ("num", "size", "exceeded"), [("11", "1", True), ("31", "1", False), ("11", "3", False)]
)
@in_loop
async def test_the_window_of_a_throttle_has_the_size_of_its_settings(num, size, exceeded):
    at_start = BrokerConfig.parse(
        {"replication.quota.window.num": num, "replication.quota.window.size.seconds": size}
    )
    config = at_start.with_dynamic({"leader.replication.throttled.rate": "10"})
    sending = throttle(lambda: config, "leader")
    sending.record(200)
    assert sending.is_exceeded is exceeded
    receiving = throttle(lambda: config, "follower")
    receiving.record(200)
    assert not receiving.is_exceeded


@pytest.mark.parametrize(
    ("setting", "named"),
    [((), False), (("*",), True), (("3:7",), True), (("7:3", "3:8"), False)],
)
def test_a_list_names_partitions_on_brokers(setting, named):
    assert names_replica(setting, 3, 7) is named
