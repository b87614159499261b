"""Changes of settings that clients request: any broker carries them out."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from headrace.broker.controller.changes import Replicas


class SettingsChanges:
    def __init__(
        self,
        dynamic_config: DynamicConfig,
        metadata: Callable[[], ClusterMetadata],
        replicas: "Replicas",
        lock: "AbstractAsyncContextManager[object]",
    ) -> None:
        """``lock`` is held from the checks until the change is stored.

        The callers make one change at a time; it keeps other changes to the cluster away.
        """
        self._dynamic_config = dynamic_config
        self._metadata = metadata
        self._replicas = replicas
        self._lock = lock

    async def alter(
        self,
        resource_type: int,
        name: str,
        overrides: Mapping[str, str],
        validate_only: bool,
        built_on: Mapping[str, str] | None,
    ) -> None:
        """Replace all settings of one resource. Raises Rejected if they are invalid.

        ``built_on`` are the settings that an incremental change started from. If they have
        changed since, the change is rejected.
        """
        async with self._lock:
            topics = self._metadata().topics
            if resource_type == ResourceType.TOPIC and name not in topics:
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            if built_on is not None and built_on != self._dynamic_config.overrides(
                resource_type, name
            ):
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"'{name}' was deleted and created again meanwhile. Retry the request.",
                )
            self._dynamic_config.check(resource_type, name, overrides)
            if validate_only:
                return
            await self._dynamic_config.replace(resource_type, name, overrides)
            touched: Iterable[str] = ()
            if resource_type == ResourceType.BROKER:
                touched = topics
            elif resource_type == ResourceType.TOPIC:
                touched = (name,)
            for topic in touched:
                self._replicas.update_topic_config(topic, self._dynamic_config.topic_config(topic))
