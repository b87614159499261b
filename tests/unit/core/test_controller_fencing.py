"""Which epochs of a controller's request a broker obeys; the table is that of Kafka 3.9."""

import pytest

from headrace.core.controller_fencing import ControllerFence
from headrace.model.errors import ErrorCode

OWN = 40


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch", "code"),
    [
        (5, OWN, ErrorCode.NONE),
        (6, OWN, ErrorCode.NONE),
        (5, OWN + 1, ErrorCode.NONE),
        (5, -1, ErrorCode.NONE),
        (4, OWN, ErrorCode.STALE_CONTROLLER_EPOCH),
        (5, OWN - 1, ErrorCode.STALE_BROKER_EPOCH),
        (4, OWN - 1, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_an_older_controller_or_an_older_registration_is_refused(
    controller_epoch, broker_epoch, code
):
    fence = ControllerFence()
    assert fence.check(5, OWN, OWN) is ErrorCode.NONE
    assert fence.check(controller_epoch, broker_epoch, OWN) is code


def test_the_highest_epoch_counts():
    fence = ControllerFence()
    fence.check(5, OWN, OWN)
    fence.check(9, OWN, OWN)
    assert fence.check(8, OWN, OWN) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert fence.controller_epoch == 9


def test_a_refused_request_does_not_raise_the_fence():
    fence = ControllerFence()
    fence.check(9, OWN - 1, OWN)
    assert fence.check(1, OWN, OWN) is ErrorCode.NONE


def test_a_kraft_controller_is_refused():
    assert ControllerFence().check(5, OWN, OWN, is_kraft=True) is ErrorCode.UNKNOWN_SERVER_ERROR
