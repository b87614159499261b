"""What a fetch returns for one partition: to a consumer, and to a follower.

A consumer reads up to the high watermark or the last stable offset, from the leader or from a
follower (KIP-392). A follower reads up to the log end; its request also tells how far it is.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.replication.replica import READ_COMMITTED, Replica
from headrace.core.fetch_rules import find_divergence
from headrace.core.fetch_session import CachedPartition
from headrace.core.leader_epochs import EpochEnd
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, Offset, ProducerId, TopicId
from headrace.storage.files import FileSlice
from headrace.wire.fetch import FetchedPartition

if TYPE_CHECKING:
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.replication.throttles import Throttle

_ANY_REPLICA_SINCE = 11  # earlier consumers know the leader only
# With these errors the response tells who leads (KIP-951).
_NAMES_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class Follower(NamedTuple):
    """The broker whose replica fetches."""

    broker_id: BrokerId
    broker_epoch: int  # -1 before version 15

    @classmethod
    def of(cls, request: Any) -> "Follower | None":
        """None for the request of a consumer."""
        state = request.replica_state
        if state.replica_id >= 0:
            return cls(state.replica_id, state.replica_epoch)
        return cls(request.replica_id, -1) if request.replica_id >= 0 else None


class FetchReads:
    def __init__(
        self, replicas: "ReplicaManager", loop: asyncio.AbstractEventLoop, *, selects_by_rack: bool
    ) -> None:
        """``selects_by_rack``: replica.selector.class is Kafka's rack-aware selector."""
        self._replicas = replicas
        self._loop = loop
        self._selects_by_rack = selects_by_rack

    def replica(self, cached: CachedPartition) -> Replica | None:
        topic = cached.topic
        if isinstance(topic, str):
            return self._replicas.get(topic, cached.partition)
        return self._replicas.get_by_id(TopicId(topic), cached.partition)

    def _cached_replica(self, cached: CachedPartition) -> Replica | None:
        """Like ``replica``, but cached: a follower asks for the same partitions in every fetch."""
        generation = self._replicas.generation
        if cached.found_in != generation:
            cached.found, cached.found_in = self.replica(cached), generation
        found: Replica | None = cached.found
        return found

    def hosted(self, partitions: Iterable[CachedPartition]) -> list[Replica]:
        """The replicas of a follower's session."""
        generation = self._replicas.generation
        found = [
            cached.found if cached.found_in == generation else self._cached_replica(cached)
            for cached in partitions
        ]
        return [replica for replica in found if replica is not None]

    def refused(self, cached: CachedPartition, refusal: Rejected) -> FetchedPartition:
        entry = FetchedPartition(cached.partition, refusal.code)
        if refusal.code in _NAMES_LEADER:
            entry.current_leader = self._replicas.leader_of(cached.topic, cached.partition)
        return entry

    # --- consumers -----------------------------------------------------------

    def for_consumer(
        self,
        cached: CachedPartition,
        request: Any,
        api_version: int,
        size_max: int,
        at_least_one: bool,
    ) -> FetchedPartition:
        replica = self.replica(cached)
        if replica is None:
            raise self._replicas.unhosted(cached.topic, cached.partition)
        leadership = replica.leadership
        if leadership is None and api_version >= _ANY_REPLICA_SINCE:
            high_watermark = replica.require_following_in(
                cached.current_leader_epoch
            ).high_watermark
        else:
            high_watermark = replica.require_leadership_in(
                cached.current_leader_epoch
            ).high_watermark
            if self._selects_by_rack and request.rack_id:
                preferred = self._replicas.preferred_replica(
                    replica, request.rack_id, Offset(cached.fetch_offset)
                )
                if preferred is not None:
                    return FetchedPartition(
                        cached.partition,
                        0,
                        high_watermark,
                        log_start=replica.log.log_start,
                        preferred_read_replica=preferred,
                    )
        log = replica.log
        fetch_offset = Offset(cached.fetch_offset)
        diverging = find_divergence(
            fetch_offset,
            LeaderEpoch(cached.last_fetched_epoch),
            log.leader_epochs,
            log.log_start,
            log.log_end,
        )
        if diverging is not None:
            return FetchedPartition(cached.partition, 0, diverging=diverging)
        stable_end = log.last_stable_offset(high_watermark)
        is_committed = request.isolation_level == READ_COMMITTED
        readable_end = stable_end if is_committed else high_watermark
        found: FileSlice | None = None
        aborted: list[tuple[ProducerId, Offset]] | None = [] if is_committed else None
        if fetch_offset < readable_end and (size_max > 0 or at_least_one):
            try:
                found = log.read(fetch_offset, size_max, readable_end, at_least_one=at_least_one)
                if found is not None and aborted is not None:
                    # Only those within the range sent. Otherwise a consumer far behind would get
                    # all later ones with every response.
                    end_offset = log.end_of(found, fetch_offset, readable_end)
                    aborted = log.aborted_transactions(fetch_offset, end_offset)
            except (Corrupt, OSError) as problem:
                raise replica.unreadable(problem) from problem
        return FetchedPartition(
            cached.partition,
            0,
            high_watermark,
            stable_end,
            log.log_start,
            aborted,
            found,
            found.size if found is not None else 0,
        )

    # --- followers -----------------------------------------------------------

    def note_progress(
        self,
        partitions: Iterable[CachedPartition],
        listed: Iterable[CachedPartition],
        follower: Follower,
    ) -> None:
        """Take what a follower's request proves about its log.

        ``listed`` are the partitions that the request names, of all ``partitions`` of its session.
        The others are where they were. That matters only to followers that wait to join the ISR.
        """
        named = {(cached.topic, cached.partition) for cached in listed}
        broker_id = follower.broker_id
        now = self._loop.time() * 1000
        generation = self._replicas.generation
        for cached in partitions:
            # As in ``with_changes``: an idle session must cost little.
            replica = (
                cached.found if cached.found_in == generation else self._cached_replica(cached)
            )
            if replica is None or (leadership := replica.leadership) is None:
                continue
            if broker_id in leadership.isr and (
                not named or (cached.topic, cached.partition) not in named
            ):
                continue
            try:
                if self._divergence(replica, cached, follower) is not None:
                    continue
            except Rejected:
                continue  # reading reports it
            effects = leadership.follower_fetched(
                broker_id,
                Offset(cached.fetch_offset),
                Offset(cached.log_start),
                follower.broker_epoch,
                now,
            )
            if effects:
                self._replicas.effects.carry_out(replica, effects)

    def with_changes(self, partitions: Iterable[CachedPartition]) -> list[CachedPartition]:
        """The partitions whose state changed since the follower's session was last answered.

        Called twice per fetch for every partition of the session, of which most are idle: so it
        compares offsets and calls nothing.
        """
        generation = self._replicas.generation
        found = []
        for cached in partitions:
            replica = (
                cached.found if cached.found_in == generation else self._cached_replica(cached)
            )
            if replica is None or (leadership := replica.leadership) is None:
                found.append(cached)
                continue
            log = replica.log
            if (
                log.log_end != cached.fetch_offset
                or leadership.high_watermark != cached.sent_high_watermark
                or log.log_start != cached.sent_log_start
                or leadership.leader_epoch != cached.current_leader_epoch
                or log.directory.offline is not None
            ):
                found.append(cached)
        return found

    def for_follower(
        self, cached: CachedPartition, follower: Follower, size_max: int, at_least_one: bool
    ) -> FetchedPartition:
        replica = self._cached_replica(cached)
        if replica is None:
            raise self._replicas.unhosted(cached.topic, cached.partition)
        diverging = self._divergence(replica, cached, follower)
        if diverging is not None:
            return FetchedPartition(cached.partition, 0, diverging=diverging)
        log = replica.log
        found: FileSlice | None = None
        throttle = self._replicas.leader_throttle if replica.is_throttled_as_leader else None
        if (
            cached.fetch_offset < log.log_end
            and (size_max > 0 or at_least_one)
            and not (throttle is not None and _is_held_back(throttle, replica, follower))
        ):
            try:
                found = log.read(
                    Offset(cached.fetch_offset), size_max, log.log_end, at_least_one=at_least_one
                )
            except (Corrupt, OSError) as problem:
                raise replica.unreadable(problem) from problem
            if throttle is not None and found is not None:
                throttle.record(found.size)
        return FetchedPartition(
            cached.partition,
            0,
            replica.require_leadership().high_watermark,
            log_start=log.log_start,
            records=found,
            records_size=found.size if found is not None else 0,
        )

    @staticmethod
    def _divergence(
        replica: Replica, cached: CachedPartition, follower: Follower
    ) -> EpochEnd | None:
        log = replica.log
        if log.offline is not None:
            replica.require_leadership()  # raises
        return replica.partition.check_follower_fetch(
            follower.broker_id,
            LeaderEpoch(cached.current_leader_epoch),
            Offset(cached.fetch_offset),
            LeaderEpoch(cached.last_fetched_epoch),
            log.leader_epochs,
            log.log_start,
            log.log_end,
        )


def _is_held_back(throttle: "Throttle", replica: Replica, follower: Follower) -> bool:
    leadership = replica.require_leadership()
    return follower.broker_id not in leadership.isr and throttle.is_exceeded
