"""A tree that outlives its sessions: every call goes to the session that is open at the moment.

A session that ends cannot be resumed. Parts of a broker that only read and write nodes keep one
tree for their whole life; after ``renew`` their calls go to the new session. What belongs to one
session, such as a term as controller, uses that session itself.
"""

from collections.abc import Callable, Sequence

from headrace.coordination.tree import Done, Node, Operation, SessionEvent, Tree, Watch


class CurrentSession(Tree):
    """A ``Tree``. Events are those of the current session."""

    def __init__(self, session: Tree) -> None:
        self.on_session_event: Callable[[SessionEvent], None] | None = None
        self.session = session
        session.on_session_event = self._happened

    def renew(self, session: Tree) -> None:
        """Use another session from now on. The old one has ended."""
        self.session.on_session_event = None
        self.session = session
        session.on_session_event = self._happened

    def _happened(self, event: SessionEvent) -> None:
        if self.on_session_event is not None:
            self.on_session_event(event)

    @property
    def session_id(self) -> int:
        return self.session.session_id

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return await self.session.get(path, watch)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self.session.get_many(paths)

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        return await self.session.children(path, watch)

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        return await self.session.multi(operations)

    async def sync(self) -> None:
        await self.session.sync()

    async def close(self) -> None:
        self.session.on_session_event = None
        await self.session.close()
