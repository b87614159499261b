"""Dynamic configuration: the settings that clients change while the broker runs.

A topic's own value overrides the broker's. A broker's value comes from its own dynamic settings,
then from those of all brokers, then from the file.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from headrace.coordination.config_store import ConfigStore
from headrace.coordination.tree import Watch
from headrace.model.config import (
    BrokerConfig,
    TopicConfig,
    check_dynamic,
    check_topic_overrides,
    topic_config,
)
from headrace.model.errors import ConfigError, Corrupt, ErrorCode, Rejected
from headrace.model.ids import BrokerId, Millis
from headrace.model.settings.resources import ResourceType

_log = logging.getLogger("headrace.metadata")

# The node of the coordination tree with the settings of each type. Log levels are not stored.
_NODES: dict[int, str] = {
    ResourceType.TOPIC: "topics",
    ResourceType.BROKER: "brokers",
    ResourceType.CLIENT_METRICS: "client-metrics",
    ResourceType.GROUP: "groups",
}
_ALL_BROKERS = "<default>"  # Kafka's name for the settings of all brokers


class DynamicConfig:
    """All dynamic settings. ``config`` has the effective settings of this broker."""

    def __init__(self, store: ConfigStore, file_config: BrokerConfig, broker_id: BrokerId) -> None:
        self._store = store
        self._file_config = file_config
        self._broker_id = broker_id
        self._overrides: dict[int, dict[str, dict[str, str]]] = {kind: {} for kind in _NODES}
        self._topic_configs: dict[str, TopicConfig] = {}
        self._listeners: list[Callable[[BrokerConfig], None]] = []
        # A change reads, modifies and stores; one of two concurrent changes would be lost.
        self.changing = asyncio.Lock()
        self.config = file_config

    def on_change(self, listener: Callable[[BrokerConfig], None]) -> None:
        """Call ``listener`` whenever the settings of this broker change."""
        self._listeners.append(listener)

    def _apply(self, config: BrokerConfig) -> None:
        self.config = config
        for listener in self._listeners:
            listener(config)

    async def load(self, now: Millis, watch: Watch | None = None) -> None:
        """Load all settings; ``watch`` fires when another broker or program changes some."""
        # Read the notices first: a change made while the settings are read is then read again.
        await self._store.read_changes(now, watch)
        for kind, node in _NODES.items():
            self._overrides[kind] = await self._store.load(node)
        self._topic_configs.clear()
        if self._overrides[ResourceType.BROKER] or self.config is not self._file_config:
            self._apply_stored()

    def _apply_stored(self) -> None:
        stored = self._overrides[ResourceType.BROKER]
        try:
            self._apply(self._file_config.with_dynamic(self._dynamic(stored)))
        except ConfigError as error:
            # The settings were valid when they were stored; the file has changed since. The
            # broker must start, or clients could not correct them.
            _log.error(
                "Ignoring all dynamic broker settings, because one is invalid: %s. Correct the "
                "dynamic settings or the broker's file",
                error,
            )

    async def read_changes(self, now: Millis, watch: Watch) -> list[tuple[int, str]]:
        """Reload the settings that changed since the last call; returns their resources."""
        kinds = {node: kind for kind, node in _NODES.items()}
        changed = [
            (kinds[each.kind], each.name)
            for each in await self._store.read_changes(now, watch)
            if each.kind in kinds
        ]
        for kind, name in changed:
            await self.reload(kind, name)
        return changed

    async def reload(self, kind: int, name: str) -> None:
        """Read the settings of one resource again. ``name`` is the one in the tree."""
        try:
            overrides = await self._store.read(_NODES[kind], name)
        except Corrupt as error:
            _log.error("Keeping the settings of %s as they were: %s. Set them again", name, error)
            return
        self.remember(kind, name, overrides)
        if kind == ResourceType.BROKER and name in (_ALL_BROKERS, str(self._broker_id)):
            self._topic_configs.clear()
            self._apply_stored()

    # --- queries

    def overrides(self, kind: int, name: str) -> dict[str, str]:
        """The settings that one resource overrides; the empty broker name means all brokers."""
        return dict(self._overrides[kind].get(_stored_name(kind, name), {}))

    def broker_overrides(self, broker_id: int | None = None) -> dict[str, str]:
        """The dynamic settings of one broker, or, for None, those of all brokers."""
        return self.overrides(ResourceType.BROKER, "" if broker_id is None else str(broker_id))

    def names(self, kind: int) -> list[str]:
        """The resources of one kind that override settings."""
        return sorted(self._overrides.get(kind, ()))

    def topic_config(self, topic: str) -> TopicConfig:
        """The effective settings of a topic. The same object until a setting changes."""
        config = self._topic_configs.get(topic)
        if config is None:
            overrides = self._overrides[ResourceType.TOPIC].get(topic)
            if not overrides:
                return topic_config(self.config, {})
            config = self._topic_configs[topic] = self._usable_config(topic, overrides)
        return config

    def _usable_config(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings without overrides that have become invalid since they were stored.

        They are checked one by one, so that an invalid retention does not disable compaction.
        """
        usable: dict[str, str] = {}
        config = topic_config(self.config, usable)
        for name, text in overrides.items():
            try:
                config = topic_config(self.config, {**usable, name: text})
                usable[name] = text
            except ConfigError as error:
                _log.error(
                    "Ignoring an invalid setting of topic %s: %s. Set it again", topic, error
                )
        return config

    # --- changes

    def check_topic(self, overrides: Mapping[str, str]) -> None:
        """Raise Rejected(INVALID_CONFIG) unless these are valid settings of a topic."""
        try:
            check_topic_overrides(self.config, overrides)
        except ConfigError as error:
            raise Rejected(ErrorCode.INVALID_CONFIG, str(error)) from error

    def check(self, kind: int, name: str, overrides: Mapping[str, str]) -> None:
        """Raise Rejected unless ``replace`` can store these settings."""
        if kind == ResourceType.TOPIC:
            self.check_topic(overrides)
        elif kind == ResourceType.BROKER:
            if self._affects_this_broker(name):
                self._config_with(name, overrides)
        elif kind not in _NODES:
            raise Rejected(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no settings.")

    async def replace(self, kind: int, name: str, overrides: Mapping[str, str]) -> None:
        """Replace all settings of one resource; ``check`` has accepted them."""
        applies = kind == ResourceType.BROKER and self._affects_this_broker(name)
        config = self._config_with(name, overrides) if applies else self.config
        await self._store.store(_NODES[kind], _stored_name(kind, name), overrides)
        self.remember(kind, name, overrides)
        if applies:
            self._topic_configs.clear()
            self._apply(config)

    def remember(self, kind: int, name: str, overrides: Mapping[str, str]) -> None:
        """Take over settings that the coordination tree has already; empty if deleted."""
        stored = _stored_name(kind, name)
        if overrides:
            self._overrides[kind][stored] = dict(overrides)
        else:
            self._overrides[kind].pop(stored, None)
        if kind == ResourceType.TOPIC:
            self._topic_configs.pop(name, None)

    def _affects_this_broker(self, name: str) -> bool:
        return name in ("", str(self._broker_id))

    def _config_with(self, name: str, overrides: Mapping[str, str]) -> BrokerConfig:
        stored = _stored_name(ResourceType.BROKER, name)
        try:
            # First without the stored settings, so that the error names a requested setting.
            check_dynamic(self._file_config, overrides, for_all=not name)
            dynamic = self._dynamic(
                {**self._overrides[ResourceType.BROKER], stored: dict(overrides)}
            )
            return self._file_config.with_dynamic(dynamic)
        except ConfigError as error:
            raise Rejected(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _dynamic(self, stored: Mapping[str, dict[str, str]]) -> dict[str, str]:
        """The dynamic settings of this broker, on top of those of all brokers."""
        return stored.get(_ALL_BROKERS, {}) | stored.get(str(self._broker_id), {})


def _stored_name(kind: int, name: str) -> str:
    return _ALL_BROKERS if kind == ResourceType.BROKER and not name else name
