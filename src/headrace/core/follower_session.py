"""A follower's side of a fetch session (KIP-227): which partitions its next request names.

The first request of a session names every partition. Later ones name the partitions whose fetch
position changed, and those to forget.
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from headrace.core.fetch_session import INITIAL_EPOCH

K = TypeVar("K", bound=Hashable)

_MAX_EPOCH = 0x7FFFFFFF
NO_SESSION = 0


class Named(NamedTuple, Generic[K]):
    """What a request says about partitions."""

    partitions: list[K]
    forgotten: list[K]


class FollowerSession(Generic[K]):
    __slots__ = ("session_id", "epoch", "_fetched", "_due", "_forgotten", "_known")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._fetched: dict[K, None] = {}
        self._due: dict[K, None] = {}  # the leader does not know their position
        self._forgotten: dict[K, None] = {}
        self._known: set[K] = set()  # to the leader

    def __bool__(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(self._fetched)

    def fetch(self, partition: K) -> None:
        """Fetch the partition from its current position on."""
        self._fetched[partition] = self._due[partition] = None
        self._forgotten.pop(partition, None)

    def pause(self, partition: K) -> None:
        """Stop fetching the partition, for good or for a while."""
        self._fetched.pop(partition, None)
        self._due.pop(partition, None)
        if partition in self._known:
            self._forgotten[partition] = None

    def moved(self, partition: K) -> None:
        """The fetch position changed."""
        if partition in self._fetched:
            self._due[partition] = None

    def next_request(self) -> Named[K]:
        """What to send now; ``answered`` or ``restart`` must follow."""
        if self.epoch == INITIAL_EPOCH:
            self._known = set(self._fetched)
            named = Named(list(self._fetched), [])
        else:
            self._known.difference_update(self._forgotten)
            self._known.update(self._due)
            named = Named(list(self._due), list(self._forgotten))
        self._due.clear()
        self._forgotten.clear()
        return named

    def answered(self, session_id: int) -> None:
        """The leader answered without an error of the session."""
        if session_id == NO_SESSION:  # it has no room for a session, or closed an empty one
            self.restart(closed=True)
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def restart(self, *, closed: bool) -> None:
        """Name everything again: the connection was lost, or the leader lost the session.

        Unless the leader ``closed`` the old session already, the next request does.
        """
        if closed:
            self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._known.clear()
        self._forgotten.clear()
