"""Settings that are stored in the coordination tree, and the notices of their changes.

A change is written together with a notice, a sequential node that wakes the other brokers. They
read the notices that are new to them, and then the settings that these name. Notices stay for 15
minutes. The brokers that handle a newer notice delete the old ones, so several may try to.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from headrace.coordination import paths, values
from headrace.coordination.tree import (
    ANY_VERSION,
    Conflict,
    Create,
    Delete,
    NoNode,
    Operation,
    Set,
    Tree,
    Watch,
)
from headrace.coordination.writer import Writer
from headrace.model.errors import Corrupt
from headrace.model.ids import Millis

_log = logging.getLogger("headrace.metadata")

NOTICE_LIFETIME_MS = 15 * 60 * 1000


class ChangedConfig(NamedTuple):
    kind: str
    name: str


class ConfigStore:
    def __init__(self, tree: Tree, writer: Writer) -> None:
        self._tree = tree
        self._writer = writer
        self._last_notice = -1

    async def load(self, kind: str) -> dict[str, dict[str, str]]:
        """The settings of every resource of one kind that has any, by name."""
        parent = paths.configs(kind)
        names = await self._tree.children(parent) or []
        nodes = await self._tree.get_many([f"{parent}/{name}" for name in names])
        return {
            paths.config_name(name): overrides
            for name, node in zip(names, nodes, strict=True)
            if node is not None
            and (overrides := values.decode_config(f"{parent}/{name}", node.value))
        }

    async def read(self, kind: str, name: str) -> dict[str, str]:
        """The settings of one resource; none if it has no node."""
        path = paths.config(kind, name)
        node = await self._tree.get(path)
        return values.decode_config(path, node.value) if node is not None else {}

    async def store(self, kind: str, name: str, overrides: Mapping[str, str]) -> None:
        """Replace all settings of one resource, and tell the other brokers."""
        path = paths.config(kind, name)
        value = values.encode_config(overrides)
        notice = Create(
            paths.CONFIG_CHANGE_PREFIX, values.encode_config_change(kind, name), sequential=True
        )
        while True:
            node = await self._tree.get(path)
            replace: Operation = (
                Create(path, value) if node is None else Set(path, value, node.zk_version)
            )
            try:
                await self._writer.write([replace, notice])
            except Conflict:
                continue  # another broker changed them: the last change wins, as in Kafka
            return

    async def read_changes(self, now: Millis, watch: Watch | None = None) -> list[ChangedConfig]:
        """The resources whose settings changed since the last call, in the order of changes."""
        names = await self._tree.children(paths.CONFIG_CHANGES, watch) or []
        names = [name for name in names if name[-10:].isdecimal()]
        if not names or _number(names[-1]) <= self._last_notice:
            return []
        notices = [f"{paths.CONFIG_CHANGES}/{name}" for name in names]
        nodes = await self._tree.get_many(notices)
        changed: dict[ChangedConfig, None] = {}
        for path, node in zip(notices, nodes, strict=True):
            if node is None:
                continue  # another broker deleted it as too old
            if _number(path) > self._last_notice:
                try:
                    changed[ChangedConfig(*values.decode_config_change(path, node.value))] = None
                except Corrupt as error:
                    _log.error("Ignored an unreadable notification of changed settings: %s", error)
            if node.created_at < now - NOTICE_LIFETIME_MS:
                await self._delete_notice(path)
        self._last_notice = _number(names[-1])
        return list(changed)

    async def _delete_notice(self, path: str) -> None:
        with suppress(NoNode):  # another broker was first
            await self._writer.write([Delete(path, ANY_VERSION)])


def _number(path: str) -> int:
    return int(path[-10:])
