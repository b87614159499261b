"""The fetchers of one broker: which connection to which leader fetches which partition.

Each leader is asked by up to ``num.replica.fetchers`` fetchers; the name of a partition decides
which one. A fetcher that has no partition left is closed.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.broker.replication.fetcher import Fetcher, FetcherSettings
from headrace.broker.replication.throttles import throttle
from headrace.broker.replication.waiting import Waiting
from headrace.model.config import BrokerConfig
from headrace.model.ids import BrokerId

if TYPE_CHECKING:
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.replication.effects import Effects
    from headrace.broker.replication.replica import Replica


class Fetchers:
    def __init__(
        self,
        broker_id: BrokerId,
        peers: "Peers",
        effects: "Effects",
        waiting: Waiting,
        dynamic_config: "DynamicConfig",
        broker_epoch: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._effects = effects
        self._waiting = waiting
        self._broker_epoch = broker_epoch
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._by_place: dict[tuple[BrokerId, int], Fetcher] = {}
        self._by_replica: dict[Replica, Fetcher] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._settings = FetcherSettings.of(dynamic_config.config)
        self._count = dynamic_config.config.int("num.replica.fetchers")
        self._throttle = throttle(lambda: dynamic_config.config, "follower")
        dynamic_config.on_change(self._config_changed)

    def follow(self, replica: "Replica", leader: BrokerId) -> None:
        """Fetch ``replica`` from ``leader``, and from no other broker."""
        fetcher = self._fetcher(replica, leader)
        before = self._by_replica.get(replica)
        if before is not None and before is not fetcher:
            self._leave(before, replica)
        self._by_replica[replica] = fetcher
        fetcher.add(replica)

    def stop_following(self, replica: "Replica") -> None:
        fetcher = self._by_replica.pop(replica, None)
        if fetcher is not None:
            self._leave(fetcher, replica)

    def _fetcher(self, replica: "Replica", leader: BrokerId) -> Fetcher:
        topic, partition = replica.topic_partition
        number = crc32(topic.encode(), partition) % self._count
        fetcher = self._by_place.get((leader, number))
        if fetcher is None:
            fetcher = self._by_place[leader, number] = Fetcher(
                self._broker_id,
                leader,
                number,
                self._peers,
                self._effects,
                self._waiting,
                self._settings,
                self._throttle,
                self._broker_epoch,
                self._fail,
            )
        return fetcher

    def _leave(self, fetcher: Fetcher, replica: "Replica") -> None:
        fetcher.remove(replica)
        if not fetcher:
            # Later: the same request of the controller may bring another partition.
            self._loop.call_soon(self._close_if_unused, fetcher)

    def _close_if_unused(self, fetcher: Fetcher) -> None:
        place = (fetcher.leader, fetcher.number)
        if not fetcher and self._by_place.get(place) is fetcher:
            del self._by_place[place]
            task = self._loop.create_task(fetcher.close())
            self._closing[task] = None
            task.add_done_callback(self._closing.pop)

    def _config_changed(self, config: BrokerConfig) -> None:
        self._settings = FetcherSettings.of(config)
        for fetcher in self._by_place.values():
            fetcher.settings_changed(self._settings)
        count = config.int("num.replica.fetchers")
        if count != self._count:
            self._count = count
            for replica, fetcher in list(self._by_replica.items()):
                self.follow(replica, fetcher.leader)

    async def stop(self) -> None:
        fetchers = list(self._by_place.values())
        self._by_place.clear()
        self._by_replica.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._closing)
