"""Producer ids of a member of a cluster: the controller allocates blocks of them.

The next block is requested when a tenth of the current one is left. A producer that comes while no
id is left waits for the block; if that takes too long it gets COORDINATOR_LOAD_IN_PROGRESS, as in
Kafka 3.9, and asks again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.broker.peers import request_while
from headrace.client.errors import ClientError
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, ProducerId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.peers import Peer, Peers
    from headrace.broker.tasks import BackgroundTasks

_log = logging.getLogger("headrace.broker")

_LEFT_AT_PREFETCH = 0.1  # of a block
# A client that is refused comes back after half a second or later.
_WAIT_S_MAX = 1.0
_RETRY_S = 0.1
_RETRY_S_MAX = 1.0


class AllocatedProducerIds:
    def __init__(
        self,
        peers: "Peers",
        tasks: "BackgroundTasks",
        broker_id: BrokerId,
        broker_epoch: Callable[[], int],
        controller_id: Callable[[], BrokerId],
        *,
        wait_s_max: float = _WAIT_S_MAX,
    ) -> None:
        self._peers = peers
        self._tasks = tasks
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller_id = controller_id
        self._wait_s_max = wait_s_max
        self._current = range(0)
        self._used_count = 0  # of the current block
        self._next: range | None = None
        self._is_fetching = False
        self._fetched = asyncio.Event()  # replaced with every block

    async def next(self) -> ProducerId:
        """An id that no producer of this cluster has had. Raises Rejected if there is none."""
        producer_id = self._take()
        if producer_id is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s_max):
                    await self._fetched.wait()
            producer_id = self._take()
        if producer_id is None:
            raise Rejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "The broker waits for a block of producer ids from the controller. Retry.",
            )
        return producer_id

    def _take(self) -> ProducerId | None:
        if self._used_count == len(self._current) and self._next is not None:
            self._current, self._next, self._used_count = self._next, None, 0
        left = len(self._current) - self._used_count
        if left <= len(self._current) * _LEFT_AT_PREFETCH:
            self.prefetch()
        if not left:
            return None
        self._used_count += 1
        return ProducerId(self._current[self._used_count - 1])

    def prefetch(self) -> None:
        """Request the next block, unless it is here or has been requested."""
        if self._next is None and not self._is_fetching:
            self._is_fetching = True
            self._tasks.spawn(self._fetch())

    async def _fetch(self) -> None:
        retry_s = _RETRY_S
        while self._next is None:
            controller_id = self._controller_id()
            peer = self._peers.peer(controller_id, str(self._broker_id), negotiates=True)
            try:
                self._next = await self._ask(peer, controller_id)
            except ClientError as problem:
                _log.info("Cannot get producer ids from the controller: %s. Retrying", problem)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
            finally:
                await peer.close()
        self._is_fetching = False
        fetched, self._fetched = self._fetched, asyncio.Event()
        fetched.set()

    async def _ask(self, peer: "Peer", controller_id: BrokerId) -> range | None:
        answer = await request_while(
            peer,
            lambda: self._controller_id() == controller_id,
            m.AllocateProducerIdsRequest(
                broker_id=self._broker_id, broker_epoch=self._broker_epoch()
            ),
            m.AllocateProducerIdsResponse,
            api_version=0,
        )
        if answer.error_code:
            _log.info(
                "The controller allocated no producer ids: error %d. Retrying",
                answer.error_code,
            )
            await asyncio.sleep(_RETRY_S)
            return None
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)
