"""A broker asks the controller to move its leaderships, and repeats that as its settings say."""

import pytest

from headrace.broker.controlled_shutdown import shut_down
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.answering_peers import AnsweringPeers
from tests.fakes.standin import in_loop

R = m.ControlledShutdownResponse
DONE = R()
REMAINS = R(remaining_partitions=[R.RemainingPartition(topic_name="orders", partition_index=2)])
CONFIG = BrokerConfig.parse(
    {"controlled.shutdown.max.retries": "3", "controlled.shutdown.retry.backoff.ms": "1"}
)


@pytest.mark.parametrize(
    ("answers", "agreed"),
    [
        ([DONE], True),
        ([REMAINS, DONE], True),
        ([None, R(error_code=ErrorCode.STALE_CONTROLLER_EPOCH), DONE], True),
        ([REMAINS, REMAINS, REMAINS], False),
        ([R(error_code=-1), None, R(error_code=999)], False),
    ],
)
@in_loop
async def test_the_request_is_repeated_while_partitions_remain(answers, agreed, caplog):
    peers = AnsweringPeers(*answers)
    controllers = iter((7, 8, 9))
    assert await shut_down(peers, CONFIG, 3, lambda: 40, lambda: next(controllers)) is agreed
    assert peers.answers == [] and peers.open_count == 0
    assert [broker_id for broker_id, _ in peers.asked] == [7, 8, 9][: len(answers)]
    assert {(each.broker_id, each.broker_epoch) for _, each in peers.asked} == {(3, 40)}
    assert ("without a controlled shutdown" in caplog.text) is not agreed


@in_loop
async def test_no_retries_means_no_request():
    peers = AnsweringPeers()
    config = BrokerConfig.parse({"controlled.shutdown.max.retries": "0"})
    assert await shut_down(peers, config, 3, lambda: 40, lambda: 7) is False


@in_loop
async def test_a_broker_that_registers_again_meanwhile_asks_with_its_new_epoch():
    peers = AnsweringPeers(R(error_code=ErrorCode.STALE_BROKER_EPOCH), DONE)
    epochs = iter((40, 41))
    assert await shut_down(peers, CONFIG, 3, lambda: next(epochs), lambda: 7)
    assert [each.broker_epoch for _, each in peers.asked] == [40, 41]
