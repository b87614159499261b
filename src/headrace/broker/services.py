"""The parts of a running broker.

Request handlers, dispatch and periodic tasks get them as the narrow protocols of ``broker.needs``.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.wire.api import SERVED, SERVED_BY_MEMBERS, ApiKey

if TYPE_CHECKING:
    from headrace.broker.bugs import Bugs
    from headrace.broker.cluster_member import ClusterMember
    from headrace.broker.controller.api import ControllerApi
    from headrace.broker.controller.member_controller import MemberController
    from headrace.broker.controller.producer_ids import ProducerIdSource
    from headrace.broker.coordinators.group import GroupCoordinator
    from headrace.broker.coordinators.markers import MarkerWriter
    from headrace.broker.coordinators.transaction import TransactionCoordinator
    from headrace.broker.member_directories import MemberDirectories
    from headrace.broker.membership import Membership
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.log_dir_moves import LogDirMoves
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.replication.waiting import Waiting
    from headrace.broker.tasks import BackgroundTasks
    from headrace.coordination.topic_store import TopicStore
    from headrace.core.fetch_session import FetchSessions
    from headrace.model.cluster_metadata import ClusterMetadata
    from headrace.model.config import BrokerConfig
    from headrace.model.ids import BrokerId
    from headrace.net.listener import ConnectionLimits
    from headrace.storage.log_manager import LogManager
    from headrace.world.world import World


class Parts(NamedTuple):
    """What a broker creates first, on one node as in a cluster."""

    broker_id: "BrokerId"
    dynamic_config: "DynamicConfig"
    appender: "Appender"
    replicas: "ReplicaManager"
    peers: "Peers"
    topics: "TopicStore"


@dataclass(frozen=True, slots=True)
class Services:
    broker_id: "BrokerId"
    loop: asyncio.AbstractEventLoop
    world: "World"
    fail: Callable[[BaseException], None]  # stops the broker
    tasks: "BackgroundTasks"
    bugs: "Bugs"
    limits: "ConnectionLimits"
    dynamic_config: "DynamicConfig"
    metadata_cache: "MetadataCache"
    logs: "LogManager"
    waiting: "Waiting"
    appender: "Appender"
    replicas: "ReplicaManager"
    controller: "ControllerApi"
    producer_ids: "ProducerIdSource"
    groups: "GroupCoordinator"
    markers: "MarkerWriter"
    transactions: "TransactionCoordinator"
    moves: "LogDirMoves"
    fetch_sessions: "FetchSessions"
    member: "ClusterMember | None"  # None on one node

    @property
    def served_apis(self) -> "Mapping[ApiKey, tuple[int, int]]":
        """The APIs that this broker announces, with their first and last versions."""
        return SERVED if self.member is None else SERVED_BY_MEMBERS

    @property
    def membership(self) -> "Membership":
        return self._as_member.membership

    @property
    def member_directories(self) -> "MemberDirectories":
        return self._as_member.directories

    @property
    def member_controller(self) -> "MemberController":
        return self._as_member.controller

    @property
    def _as_member(self) -> "ClusterMember":
        assert self.member is not None, "one node does not serve what brokers send each other"
        return self.member

    @property
    def config(self) -> "BrokerConfig":
        """The effective settings, with the dynamic ones."""
        return self.dynamic_config.config

    @property
    def metadata(self) -> "ClusterMetadata":
        return self.metadata_cache.current
