"""Writes to the coordination tree whose outcome is always known to the caller."""

import logging
from collections.abc import Sequence

from headrace.coordination.tree import (
    ANY_VERSION,
    NO_SESSION,
    Check,
    Create,
    Delete,
    Done,
    Node,
    NodeExists,
    Operation,
    OutcomeUnknown,
    Set,
    Tree,
    Unwritable,
)
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import ZkVersion

_log = logging.getLogger("headrace.metadata")

_UNKNOWN_ZXID = -1


class Writer:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def write(self, operations: Sequence[Operation]) -> list[Done]:
        """Do all of ``operations`` or nothing.

        A write whose response is lost is read back. If the nodes are as ``operations`` leave them,
        the write happened. Otherwise it is repeated. That is safe, because the tree refuses the
        repeat if the first attempt happened after all: every operation names a version, creates a
        node with a unique name, or is written next to a check.

        Raises Conflict if the tree refuses, Rejected if it cannot store anything now, and
        SessionLost.
        """
        while True:
            try:
                return await self._tree.multi(operations)
            except OutcomeUnknown as lost:
                done = await self._read_back(operations)
                _log.warning(
                    "Connection to the cluster metadata lost during a write at %s; it %s",
                    lost.path,
                    "was stored" if done is not None else "was not stored and is repeated",
                )
                if done is not None:
                    return done
            except Unwritable as error:
                raise Rejected(
                    ErrorCode.KAFKA_STORAGE_ERROR, "The cluster metadata cannot be written now."
                ) from error

    async def get_or_create(self, path: str, value: bytes = b"") -> Node:
        """The node, whichever process created it; with ``value`` if this one does."""
        while True:
            node = await self._tree.get(path)
            if node is not None:
                return node
            try:
                await self.write([Create(path, value)])
            except NodeExists:
                continue  # another process was first: read its value

    async def _read_back(self, operations: Sequence[Operation]) -> list[Done] | None:
        """The results of ``operations`` if they happened."""
        # Of several operations on one node, only the effect of the last is visible. The name of a
        # sequential node is unknown: the other operations of the write show whether it happened.
        last = {each.path: each for each in operations if _has_visible_effect(each)}
        assert last, "the outcome of this write could not be read back"
        await self._tree.sync()
        found = dict(zip(last, await self._tree.get_many(list(last)), strict=True))
        if not all(self._happened(each, found[path]) for path, each in last.items()):
            return None
        return [_result(each, found.get(each.path)) for each in operations]

    def _happened(self, operation: Operation, node: Node | None) -> bool:
        match operation:
            case Create(_, value, ephemeral):
                owner = self._tree.session_id if ephemeral else NO_SESSION
                return node is not None and (node.value, node.ephemeral_owner) == (value, owner)
            case Set(_, value, expected):
                return (
                    node is not None
                    and node.value == value
                    and expected in (ANY_VERSION, node.zk_version - 1)
                )
            case Delete():
                return node is None
            case Check():
                return True


def _has_visible_effect(operation: Operation) -> bool:
    match operation:
        case Create():
            return not operation.sequential
        case Check():
            return False
        case _:
            return True


def _result(operation: Operation, node: Node | None) -> Done:
    match operation:
        case Create(path) if node is not None:
            return Done(path, ZkVersion(0), node.created_zxid)
        case Set(path) if node is not None:
            return Done(path, node.zk_version, node.modified_zxid)
        case Create(path):
            return Done(path, ZkVersion(0), _UNKNOWN_ZXID)
        case _:
            return Done(operation.path, operation.expected, _UNKNOWN_ZXID)
