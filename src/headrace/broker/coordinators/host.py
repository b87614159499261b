"""What a coordinator uses of its broker."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.broker.clock import SteadyClock
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.replication.waiting import Waiting
    from headrace.broker.tasks import BackgroundTasks


class Host(NamedTuple):
    loop: asyncio.AbstractEventLoop
    clock: "SteadyClock"
    dynamic_config: "DynamicConfig"
    metadata: "MetadataCache"
    replicas: "ReplicaManager"
    appender: "Appender"
    waiting: "Waiting"
    tasks: "BackgroundTasks"
    fail: Callable[[BaseException], None]
    peers: "Peers"
