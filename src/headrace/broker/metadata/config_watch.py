"""Settings that other brokers and programs change: read again when a notice tells of them."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.coordination.tree import SessionLost
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.tasks import BackgroundTasks
    from headrace.world.world import World

_log = logging.getLogger("headrace.metadata")


class ConfigWatch:
    def __init__(
        self,
        dynamic_config: "DynamicConfig",
        world: "World",
        tasks: "BackgroundTasks",
        hosted_topics: Callable[[], Iterable[str]],
        apply_to_topic: Callable[[str], None],
    ) -> None:
        """``apply_to_topic`` applies the current settings to the partitions of a topic."""
        self._dynamic_config = dynamic_config
        self._world = world
        self._tasks = tasks
        self._hosted_topics = hosted_topics
        self._apply_to_topic = apply_to_topic
        self._reading = asyncio.Lock()  # notices are handled in their order

    async def load(self) -> None:
        """Load all settings and watch for changes; again with every new session."""
        async with self._reading:
            await self._dynamic_config.load(self._world.now(), self._fired)
            for topic in list(self._hosted_topics()):
                self._apply_to_topic(topic)

    def _fired(self, path: str) -> None:
        self._tasks.spawn(self._read())

    async def _read(self) -> None:
        with suppress(SessionLost):  # the next session loads everything
            async with self._reading:
                changed = await self._dynamic_config.read_changes(self._world.now(), self._fired)
                for kind, name in changed:
                    _log.info("Settings of %s %s changed", ResourceType(kind).label, name)
                    self._apply(kind, name)

    def _apply(self, kind: int, name: str) -> None:
        if kind == ResourceType.TOPIC:
            self._apply_to_topic(name)
        elif kind == ResourceType.BROKER:
            for topic in list(self._hosted_topics()):
                self._apply_to_topic(topic)
