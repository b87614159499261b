"""Fetch sessions (KIP-227): a client names its partitions once, later only the changes.

A session is the ordered list of the partitions that a client fetches, with what the last response
said about each. Partitions that returned records move to the end, so that a busy one cannot
starve the others when the size of a response is limited.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace.model.errors import ErrorCode, Rejected

FINAL_EPOCH = -1  # close the session, or do not open one
INITIAL_EPOCH = 0  # open a session
_MAX_EPOCH = 0x7FFFFFFF

TopicRef = str | bytes  # its name, or its id


class CachedPartition:
    """One partition of a fetch: what the client requests, and what the last response said."""

    __slots__ = (
        "topic",
        "partition",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start",
        "size_max",
        "sent_high_watermark",
        "sent_log_start",
        "found",
        "found_in",
    )

    def __init__(
        self,
        topic: TopicRef,
        partition: int,
        current_leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        size_max: int,
        log_start: int = -1,
    ) -> None:
        """``log_start`` is that of the follower that asks; -1 for a consumer."""
        self.topic = topic
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.size_max = size_max
        self.log_start = log_start
        self.sent_high_watermark = -1
        self.sent_log_start = -1
        # For the caller: what it found under this name, and in which generation of its registry.
        self.found: Any = None
        self.found_in = -1

    def updated(self, cached: "CachedPartition") -> None:
        """The client changed its request for the partition; the last sent offsets stay."""
        self.current_leader_epoch = cached.current_leader_epoch
        self.fetch_offset = cached.fetch_offset
        self.last_fetched_epoch = cached.last_fetched_epoch
        self.size_max = cached.size_max
        self.log_start = cached.log_start


class Session:
    """The partitions of one client, least recently returned first."""

    __slots__ = ("session_id", "next_epoch", "partitions", "by_topic_id", "is_followers", "used_at")

    def __init__(
        self, session_id: int, by_topic_id: bool, now: float, *, is_followers: bool = False
    ) -> None:
        self.session_id = session_id
        self.next_epoch = 1
        self.partitions: dict[tuple[TopicRef, int], CachedPartition] = {}
        self.by_topic_id = by_topic_id
        self.is_followers = is_followers
        self.used_at = now

    def release(self) -> None:
        """Let go of what the caller found: a deleted partition must not stay in memory for it."""
        for cached in self.partitions.values():
            cached.found, cached.found_in = None, -1

    def answered(
        self,
        cached: CachedPartition,
        high_watermark: int,
        log_start: int,
        *,
        has_records: bool,
        failed: bool,
    ) -> bool:
        """Remember the sent offsets; True if the response must include the partition."""
        changed = (
            has_records
            or failed
            or cached.sent_high_watermark != high_watermark
            or cached.sent_log_start != log_start
        )
        # An error is repeated until the client handles it.
        cached.sent_high_watermark = -1 if failed else high_watermark
        cached.sent_log_start = -1 if failed else log_start
        if has_records:
            key = (cached.topic, cached.partition)
            if key in self.partitions:
                self.partitions[key] = self.partitions.pop(key)
        return changed


class Fetch(NamedTuple):
    """A fetch request together with its session."""

    partitions: list[CachedPartition]
    session: Session | None
    incremental: bool  # the response omits unchanged partitions

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else 0


class FetchSessions:
    """All sessions of a broker, at most ``count_max``.

    A new session replaces the least recently used one if that was idle for ``idle_ms_min`` or
    longer. Otherwise the client gets no session and names all its partitions each time. A
    follower's session replaces a consumer's in any case: it has many more partitions.
    """

    def __init__(
        self, count_max: int, draw_id: Callable[[], int], idle_ms_min: float = 120_000
    ) -> None:
        self.count_max = count_max
        self.idle_ms_min = idle_ms_min
        self._draw_id = draw_id
        self._sessions: dict[int, Session] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        session_epoch: int,
        partitions: list[CachedPartition],
        forgotten: Iterable[tuple[TopicRef, int]],
        by_topic_id: bool,
        now: float,
        *,
        is_followers: bool = False,
    ) -> Fetch:
        """Find, open, change or close the session of a request. Raises Rejected."""
        if session_epoch == FINAL_EPOCH:
            self._sessions.pop(session_id, None)
            return Fetch(partitions, None, False)
        if session_epoch == INITIAL_EPOCH:
            self._sessions.pop(session_id, None)
            session = self._open(partitions, by_topic_id, now, is_followers=is_followers)
            return Fetch(partitions, session, False)
        session = self._sessions.get(session_id)
        if session is None:
            raise Rejected(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"Fetch session {session_id} does not exist."
            )
        if session.by_topic_id is not by_topic_id:
            raise Rejected(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"Fetch session {session_id} was opened "
                f"{'with' if session.by_topic_id else 'without'} topic ids.",
            )
        if session_epoch != session.next_epoch:
            raise Rejected(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"Fetch session {session_id} expects epoch {session.next_epoch}, "
                f"not {session_epoch}.",
            )
        session.next_epoch = 1 if session_epoch == _MAX_EPOCH else session_epoch + 1
        session.used_at = now
        self._sessions[session_id] = self._sessions.pop(session_id)
        for cached in partitions:
            known = session.partitions.get((cached.topic, cached.partition))
            if known is None:
                session.partitions[cached.topic, cached.partition] = cached
            else:
                known.updated(cached)
        for key in forgotten:
            session.partitions.pop(key, None)
        if not session.partitions:  # nothing left to remember: close the session
            del self._sessions[session_id]
            return Fetch([], None, False)
        return Fetch(list(session.partitions.values()), session, True)

    def _open(
        self,
        partitions: list[CachedPartition],
        by_topic_id: bool,
        now: float,
        *,
        is_followers: bool,
    ) -> Session | None:
        if not partitions:
            return None
        for idle in self._sessions.values():
            if now - idle.used_at < self.idle_ms_min:
                break
            idle.release()
        if len(self._sessions) >= self.count_max:
            replaced = self._replaceable(now, is_followers=is_followers)
            if replaced is None:
                return None
            del self._sessions[replaced.session_id]
        session_id = self._draw_id()
        while session_id in self._sessions or session_id <= 0:
            session_id = self._draw_id()
        session = self._sessions[session_id] = Session(
            session_id, by_topic_id, now, is_followers=is_followers
        )
        for cached in partitions:
            session.partitions[cached.topic, cached.partition] = cached
        return session

    def _replaceable(self, now: float, *, is_followers: bool) -> Session | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now - oldest.used_at >= self.idle_ms_min:
            return oldest
        if not is_followers:
            return None
        return next((each for each in self._sessions.values() if not each.is_followers), None)
