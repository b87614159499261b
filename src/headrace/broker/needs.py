"""The parts of a broker that other parts may use: one small protocol per part.

A module of handlers, dispatch and the periodic tasks each combine the protocols that they need, so
their signatures show what they can touch.
``Services`` implements all of them.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from headrace.broker.bugs import Bugs
    from headrace.broker.controller.api import ControllerApi
    from headrace.broker.controller.producer_ids import ProducerIdSource
    from headrace.broker.coordinators.group import GroupCoordinator
    from headrace.broker.coordinators.markers import MarkerWriter
    from headrace.broker.coordinators.transaction import TransactionCoordinator
    from headrace.broker.member_directories import MemberDirectories
    from headrace.broker.membership import Membership
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.log_dir_moves import LogDirMoves
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.replication.waiting import Waiting
    from headrace.broker.tasks import BackgroundTasks
    from headrace.model.cluster_metadata import ClusterMetadata
    from headrace.model.config import BrokerConfig
    from headrace.model.ids import BrokerId
    from headrace.net.listener import ConnectionLimits
    from headrace.storage.log_manager import LogManager
    from headrace.wire.api import ApiKey
    from headrace.world.world import World


class NeedsBrokerId(Protocol):
    @property
    def broker_id(self) -> "BrokerId": ...


class NeedsConfig(Protocol):
    """The effective settings, and the source of each."""

    @property
    def config(self) -> "BrokerConfig": ...
    @property
    def dynamic_config(self) -> "DynamicConfig": ...


class NeedsMetadata(Protocol):
    @property
    def metadata(self) -> "ClusterMetadata": ...
    @property
    def metadata_cache(self) -> "MetadataCache": ...


class NeedsController(Protocol):
    @property
    def controller(self) -> "ControllerApi": ...


class NeedsReplicas(Protocol):
    @property
    def replicas(self) -> "ReplicaManager": ...


class NeedsLogDirs(Protocol):
    @property
    def logs(self) -> "LogManager": ...
    @property
    def moves(self) -> "LogDirMoves": ...


class NeedsGroups(Protocol):
    @property
    def groups(self) -> "GroupCoordinator": ...


class NeedsTransactions(Protocol):
    @property
    def transactions(self) -> "TransactionCoordinator": ...


class NeedsProducers(Protocol):
    """Producer ids and transaction markers."""

    @property
    def producer_ids(self) -> "ProducerIdSource": ...
    @property
    def markers(self) -> "MarkerWriter": ...


class NeedsMembership(Protocol):
    """In a cluster only; one node has no other controller to obey."""

    @property
    def membership(self) -> "Membership": ...
    @property
    def member_directories(self) -> "MemberDirectories": ...


class NeedsServedApis(Protocol):
    @property
    def served_apis(self) -> "Mapping[ApiKey, tuple[int, int]]": ...


class NeedsWaiting(Protocol):
    @property
    def waiting(self) -> "Waiting": ...


class NeedsWorld(Protocol):
    @property
    def world(self) -> "World": ...
    @property
    def loop(self) -> "asyncio.AbstractEventLoop": ...


class NeedsAppender(Protocol):
    @property
    def appender(self) -> "Appender": ...


class NeedsConnections(Protocol):
    @property
    def limits(self) -> "ConnectionLimits": ...


class NeedsTasks(Protocol):
    @property
    def tasks(self) -> "BackgroundTasks": ...


class NeedsToFail(Protocol):
    """What follows a bug: an error for one client, or the end of the broker."""

    @property
    def bugs(self) -> "Bugs": ...
    @property
    def fail(self) -> "Callable[[BaseException], None]": ...
