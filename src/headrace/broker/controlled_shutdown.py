"""Controlled shutdown: ask the controller to move the leaderships away before the broker stops.

As in Kafka 3.9: the request is repeated ``controlled.shutdown.max.retries`` times while partitions
remain that only this broker can lead, or while no controller answers.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.client.errors import ClientError
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.peers import Peers
    from headrace.model.config import BrokerConfig

_log = logging.getLogger("headrace.broker")

_API_VERSION = 3


async def shut_down(
    peers: "Peers",
    config: "BrokerConfig",
    broker_id: BrokerId,
    broker_epoch: "Callable[[], int]",
    controller_id: "Callable[[], BrokerId]",
) -> bool:
    """Give up all leaderships that other brokers can take; True if the controller agreed.

    ``controller_id`` and ``broker_epoch`` are called before every try, because there may be a new
    controller, or this broker may have registered again.
    """
    timeout_s = config.int("controller.socket.timeout.ms") / 1000
    backoff_s = config.int("controlled.shutdown.retry.backoff.ms") / 1000
    tries_left = config.int("controlled.shutdown.max.retries")
    problem = "controlled.shutdown.max.retries is 0"
    while tries_left > 0:
        request = m.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch())
        peer = peers.peer(controller_id(), str(broker_id), timeout_s=timeout_s)
        try:
            answer = await peer.request(
                request, m.ControlledShutdownResponse, api_version=_API_VERSION
            )
        except ClientError as error:
            problem = str(error)
        else:
            if not answer.error_code and not answer.remaining_partitions:
                _log.info("Controlled shutdown: other brokers now lead the partitions of this one")
                return True
            problem = _what_remains(answer)
        finally:
            await peer.close()
        tries_left -= 1
        if tries_left:
            _log.info("Controlled shutdown failed: %s. Retrying in %g s", problem, backoff_s)
            await asyncio.sleep(backoff_s)
    _log.warning(
        "Stopping without a controlled shutdown: %s. Clients wait for new leaders until the "
        "controller notices that this broker is gone",
        problem,
    )
    return False


def _what_remains(answer: m.ControlledShutdownResponse) -> str:
    if answer.error_code:
        try:
            return f"the controller answered {ErrorCode(answer.error_code).name}"
        except ValueError:
            return f"the controller answered error {answer.error_code}"
    names = [f"{each.topic_name}-{each.partition_index}" for each in answer.remaining_partitions]
    return f"no other replica can lead {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
