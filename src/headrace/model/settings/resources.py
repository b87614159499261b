"""Config resources: what can have settings, where a value comes from, how one is changed.

The numbers are those on the wire.
"""

from enum import IntEnum


class ResourceType(IntEnum):
    """What can have settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32

    @property
    def label(self) -> str:
        """The name in messages."""
        return self.name.lower().replace("_", " ")


class ConfigSource(IntEnum):
    """Where a value comes from."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class AlterOperation(IntEnum):
    """How IncrementalAlterConfigs changes a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
