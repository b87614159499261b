"""Which requests of a controller a broker obeys: epochs decide, as in Kafka 3.9.

Pure. A request carries the epoch of its controller and the broker epoch of its receiver:

    controller_epoch   a lower one than seen before comes from a controller that was replaced
    broker_epoch       a lower one was meant for an earlier process with this broker id. -1 is
                       accepted, and a higher one too: the controller may learn of a registration
                       before this broker does
"""

from headrace.model.errors import ErrorCode
from headrace.model.ids import ControllerEpoch

UNKNOWN_BROKER_EPOCH = -1


class ControllerFence:
    """Remembers the highest controller epoch that was accepted."""

    __slots__ = ("controller_epoch",)

    def __init__(self) -> None:
        self.controller_epoch = ControllerEpoch(0)

    def check(
        self, controller_epoch: int, receiver_epoch: int, own_epoch: int, *, is_kraft: bool = False
    ) -> ErrorCode:
        """NONE if the request is to be obeyed. A stale broker epoch is reported first.

        ``receiver_epoch`` is the broker epoch in the request, ``own_epoch`` that of this broker.
        """
        if is_kraft:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if receiver_epoch != UNKNOWN_BROKER_EPOCH and receiver_epoch < own_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = ControllerEpoch(controller_epoch)
        return ErrorCode.NONE
