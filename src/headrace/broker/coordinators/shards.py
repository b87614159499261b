"""The shards of one internal topic on this broker: loaded where it leads, dropped otherwise.

A shard is loaded in the background, by replaying the log of its partition. It is dropped if
leadership is lost, if its disk fails, or if it is unclear what was written.

Errors that a client gets if its coordinator cannot be asked:

    NOT_COORDINATOR                 another broker leads the partition, or it cannot be read
    COORDINATOR_LOAD_IN_PROGRESS    its log is being replayed
    COORDINATOR_NOT_AVAILABLE       the decision could not be written; also when stopping
"""

import logging
from collections.abc import Callable, Iterator
from typing import Generic

from headrace.broker.coordinators.host import Host
from headrace.broker.coordinators.loaded_shard import LoadedShard, S
from headrace.broker.coordinators.loading import UNREADABLE, replay_log
from headrace.core.parked import Event
from headrace.model.errors import ErrorCode, Rejected

_log = logging.getLogger("headrace.coordinator")


class Shards(Generic[S]):
    def __init__(
        self,
        host: Host,
        topic: str,
        make_shard: Callable[[int], S],
        run_effect: Callable[[int, object], None] | None,
        on_loaded: Callable[[LoadedShard[S]], None],
    ) -> None:
        self._host = host
        self._topic = topic
        self._make_shard = make_shard
        self._run_effect = run_effect
        self._on_loaded = on_loaded
        self._by_partition: dict[int, LoadedShard[S]] = {}
        self._is_closed = False
        self._will_refresh = False
        host.replicas.on_change(self._refresh_soon)

    def __contains__(self, partition: int) -> bool:
        """Whether this broker coordinates the partition; its shard may still be loading."""
        return partition in self._by_partition

    def __iter__(self) -> Iterator[LoadedShard[S]]:
        return iter(list(self._by_partition.values()))

    def loaded_partitions(self) -> list[int]:
        return [loaded.partition for loaded in self if loaded.is_current()]

    def is_loading(self) -> bool:
        return any(not loaded.is_loaded and loaded.problem is None for loaded in self)

    def find(self, partition: int) -> LoadedShard[S]:
        """The shard that can be asked. Raises Rejected."""
        loaded = self._by_partition.get(partition)
        if loaded is None or loaded.leadership is not loaded.replica.leadership:
            found = self._begin_loading(partition)
            if found is None:
                raise Rejected(
                    ErrorCode.NOT_COORDINATOR,
                    f"this broker does not lead {self._topic}-{partition}",
                )
            loaded = found
        if not loaded.is_loaded:
            if loaded.problem is not None:
                raise Rejected(ErrorCode.NOT_COORDINATOR, loaded.problem)
            raise Rejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._topic}-{partition} is being loaded"
            )
        return loaded

    # --- loading

    def _refresh_soon(self) -> None:
        """Refresh once after all changes of this turn; a request may change many partitions."""
        if not self._will_refresh and not self._is_closed:
            self._will_refresh = True
            self._host.loop.call_soon(self._refresh_now)

    def _refresh_now(self) -> None:
        self._will_refresh = False
        try:
            self.refresh()
            self._host.waiting.serve()
        except Exception as error:  # noqa: BLE001 - a bug while shards are loaded or dropped
            self._host.fail(error)

    def refresh(self) -> None:
        """Load shards for the partitions led here now, and drop all others."""
        if self._is_closed:
            return
        for loaded in self:
            if loaded.leadership is not loaded.replica.leadership:
                self.drop(loaded, ErrorCode.NOT_COORDINATOR)
        for replica in self._host.replicas.of_topic(self._topic):
            if replica.topic_partition.partition not in self._by_partition:
                self._begin_loading(replica.topic_partition.partition)

    def _begin_loading(self, partition: int) -> LoadedShard[S] | None:
        """Begin to coordinate a partition; None if this broker does not lead it."""
        old = self._by_partition.get(partition)
        if old is not None:
            self.drop(old, ErrorCode.NOT_COORDINATOR)
        replica = self._host.replicas.get(self._topic, partition)
        if replica is None or self._is_closed:
            return None
        leadership = replica.leadership
        if leadership is None or replica.log.offline is not None:
            return None
        shard = self._make_shard(partition)
        loaded = LoadedShard(
            partition, replica, leadership, shard, self._happened, self._run_effect
        )
        self._by_partition[partition] = loaded
        self._host.waiting.watch(loaded, replica)
        if replica.log.log_start == replica.log.log_end:
            self._loaded(loaded)
        else:
            self._host.tasks.spawn(self._load(loaded))
        return loaded

    async def _load(self, loaded: LoadedShard[S]) -> None:
        log = loaded.replica.log
        loop = self._host.loop
        started_at = loop.time()

        def is_wanted() -> bool:
            return (
                self._by_partition.get(loaded.partition) is loaded
                and loaded.leadership is loaded.replica.leadership
            )

        try:
            record_count = await replay_log(log, loaded.shard, is_wanted)
        except UNREADABLE as error:
            # Otherwise the topic was deleted, or the log is truncated to that of the next leader.
            if is_wanted() and not log.closed:
                loaded.mark_unreadable(error)
                _log.error(
                    "%s. The groups or transactions of this partition are not available. Check "
                    "the files in %s",
                    loaded.problem,
                    log.path,
                )
            return
        if not is_wanted():
            return
        _log.info(
            "Loaded %s: %d records in %.0f ms",
            loaded.replica.topic_partition,
            record_count,
            (loop.time() - started_at) * 1000,
        )
        self._loaded(loaded)
        self._host.waiting.serve()

    def _loaded(self, loaded: LoadedShard[S]) -> None:
        loaded.mark_loaded()
        self._on_loaded(loaded)

    # --- dropping

    def _happened(self, loaded: LoadedShard[S], event: Event) -> bool:
        match event:
            case Event.HIGH_WATERMARK:
                loaded.release_committed()
                return not loaded.holds_back
            case Event.LEADERSHIP_LOST | Event.TOPIC_DELETED | Event.DISK_OFFLINE:
                self.drop(loaded, ErrorCode.NOT_COORDINATOR)
                return True
            case Event.LEADERSHIP_GAINED:
                pass  # ``refresh`` loads the shard
        return False

    def drop(self, loaded: LoadedShard[S], code: ErrorCode) -> None:
        """Forget a shard. Its clients have to find the coordinator again."""
        if self._by_partition.get(loaded.partition) is loaded:
            del self._by_partition[loaded.partition]
        self._host.waiting.unwatch(loaded, loaded.replica)
        self._host.waiting.unpark(loaded)
        loaded.drop(
            Rejected(
                code,
                f"this broker does not coordinate {self._topic}-{loaded.partition} now; find the "
                "coordinator again",
            )
        )

    def close(self) -> None:
        """Drop all shards, and refuse all waiting requests."""
        self._is_closed = True
        for loaded in self:
            self.drop(loaded, ErrorCode.COORDINATOR_NOT_AVAILABLE)
