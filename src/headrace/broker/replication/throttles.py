"""The throttles of replication: what this broker sends as leader, and fetches as follower.

They slow down only replicas that the topic's settings name and that are not in sync. So a move of
partitions leaves room for clients, and replicas stay in sync.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.replication_quota import ReplicationQuota

if TYPE_CHECKING:
    from headrace.model.config import BrokerConfig


class Throttle:
    """One direction. The rate is read at each use, so that a change takes effect at once."""

    def __init__(
        self, quota: ReplicationQuota, rate: Callable[[], int], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._quota = quota
        self._rate = rate
        self._loop = loop

    @property
    def is_exceeded(self) -> bool:
        return self._quota.is_exceeded(self._rate(), self._loop.time())

    def record(self, size: int) -> None:
        """Bytes of throttled replicas count, whether or not these are in sync."""
        self._quota.record(size, self._loop.time())


def throttle(config: "Callable[[], BrokerConfig]", side: str) -> Throttle:
    """The throttle of the ``leader`` or ``follower`` side. The window is fixed at the start."""
    window = ReplicationQuota(
        config().int("replication.quota.window.num"),
        config().int("replication.quota.window.size.seconds"),
    )
    setting = f"{side}.replication.throttled.rate"
    return Throttle(window, lambda: config().int(setting), asyncio.get_running_loop())


def names_replica(setting: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names the partition's replica on a broker."""
    return setting == ("*",) or f"{partition}:{broker_id}" in setting
