"""The settings that change while the broker runs: kept in the registry, checked, looked up.

A topic's own value wins over the broker's. Of the broker's, what was set for this
broker wins over what was set for all of them, and both over the file.
"""

import logging
from collections.abc import Callable, Mapping

from headrace.coordination.config_store import ConfigStore
from headrace.model.config import (
    BrokerConfig,
    TopicConfig,
    check_dynamic,
    check_topic_overrides,
    topic_config,
)
from headrace.model.errors import ConfigError, ErrorCode, Rejected
from headrace.model.ids import BrokerId, Millis
from headrace.model.settings.resources import ResourceType

log = logging.getLogger("headrace.metadata")

# Where the tree keeps the settings of each type. Those of loggers are not stored.
_NODES: dict[int, str] = {
    ResourceType.TOPIC: "topics",
    ResourceType.BROKER: "brokers",
    ResourceType.CLIENT_METRICS: "client-metrics",
    ResourceType.GROUP: "groups",
}
_ALL_BROKERS = "<default>"  # Kafka's name for the settings of all brokers


class DynamicConfig:
    """All dynamic settings. ``config`` is what the broker runs with now."""

    def __init__(self, store: ConfigStore, file_config: BrokerConfig, broker_id: BrokerId) -> None:
        self._store = store
        self._file_config = file_config
        self._broker_id = broker_id
        self._overrides: dict[int, dict[str, dict[str, str]]] = {kind: {} for kind in _NODES}
        self._topic_configs: dict[str, TopicConfig] = {}
        self._listeners: list[Callable[[BrokerConfig], None]] = []
        self.config = file_config

    def on_change(self, listener: Callable[[BrokerConfig], None]) -> None:
        """Call ``listener`` whenever the settings of this broker change."""
        self._listeners.append(listener)

    def _take(self, config: BrokerConfig) -> None:
        self.config = config
        for listener in self._listeners:
            listener(config)

    async def load(self, now: Millis) -> None:
        # First the notices: a change that comes while the settings are read is read again.
        await self._store.read_changes(now)
        for kind, node in _NODES.items():
            self._overrides[kind] = await self._store.load(node)
        if self._overrides[ResourceType.BROKER]:
            try:
                self._take(
                    self._file_config.with_dynamic(
                        self._dynamic(self._overrides[ResourceType.BROKER])
                    )
                )
            except ConfigError as error:
                # It was right when it was set; the file has changed since. The
                # node must come up, or nobody could correct it.
                log.error(
                    "dynamic broker settings are left out until they are corrected: %s", error
                )

    # --- looking up

    def overrides(self, kind: int, name: str) -> dict[str, str]:
        """One thing's own settings; the empty broker name stands for all brokers."""
        return dict(self._overrides[kind].get(_stored_name(kind, name), {}))

    def names(self, kind: int) -> list[str]:
        """What of one kind has settings of its own."""
        return sorted(self._overrides.get(kind, ()))

    def topic_config(self, topic: str) -> TopicConfig:
        """What a topic lives by now. The same object until a setting changes."""
        config = self._topic_configs.get(topic)
        if config is None:
            overrides = self._overrides[ResourceType.TOPIC].get(topic)
            if not overrides:
                return topic_config(self.config, {})
            config = self._topic_configs[topic] = self._usable_config(topic, overrides)
        return config

    def _usable_config(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """Without what cannot stand any more: it was right when it was set.

        One by one, so that a bad retention does not take the compaction along.
        """
        usable: dict[str, str] = {}
        config = topic_config(self.config, usable)
        for name, text in overrides.items():
            try:
                config = topic_config(self.config, {**usable, name: text})
                usable[name] = text
            except ConfigError as error:
                log.error("topic %s: ignored until it is set again: %s", topic, error)
        return config

    # --- changing

    def check_topic(self, overrides: Mapping[str, str]) -> None:
        """Raise Rejected(INVALID_CONFIG) unless a topic can live by these."""
        try:
            check_topic_overrides(self.config, overrides)
        except ConfigError as error:
            raise Rejected(ErrorCode.INVALID_CONFIG, str(error)) from error

    def check(self, kind: int, name: str, overrides: Mapping[str, str]) -> None:
        """Raise Rejected unless ``replace`` could keep these."""
        if kind == ResourceType.TOPIC:
            self.check_topic(overrides)
        elif kind == ResourceType.BROKER:
            self._config_with(name, overrides)
        elif kind not in _NODES:
            raise Rejected(ErrorCode.INVALID_REQUEST, f"Resources of type {kind} keep no settings.")

    async def replace(self, kind: int, name: str, overrides: Mapping[str, str]) -> None:
        """All settings of one thing are now these; ``check`` has passed them."""
        config = self._config_with(name, overrides) if kind == ResourceType.BROKER else self.config
        await self._store.store(_NODES[kind], _stored_name(kind, name), overrides)
        self.remember(kind, name, overrides)
        if kind == ResourceType.BROKER:
            self._topic_configs.clear()
            self._take(config)

    def remember(self, kind: int, name: str, overrides: Mapping[str, str]) -> None:
        """The registry has these already, or no longer any."""
        stored = _stored_name(kind, name)
        if overrides:
            self._overrides[kind][stored] = dict(overrides)
        else:
            self._overrides[kind].pop(stored, None)
        if kind == ResourceType.TOPIC:
            self._topic_configs.pop(name, None)

    def _config_with(self, name: str, overrides: Mapping[str, str]) -> BrokerConfig:
        stored = _stored_name(ResourceType.BROKER, name)
        try:
            # Alone first: the message should blame what was asked for now.
            check_dynamic(self._file_config, overrides, for_all=not name)
            dynamic = self._dynamic(
                {**self._overrides[ResourceType.BROKER], stored: dict(overrides)}
            )
            return self._file_config.with_dynamic(dynamic)
        except ConfigError as error:
            raise Rejected(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _dynamic(self, stored: Mapping[str, dict[str, str]]) -> dict[str, str]:
        """This broker's own over those of all brokers."""
        return stored.get(_ALL_BROKERS, {}) | stored.get(str(self._broker_id), {})


def _stored_name(kind: int, name: str) -> str:
    return _ALL_BROKERS if kind == ResourceType.BROKER and not name else name
