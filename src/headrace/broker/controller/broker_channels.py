"""The controller's channels to the live brokers: one request in flight to each, in order.

States for a broker are collected while a request is in flight, and the newest state of a
partition replaces older ones. A batch is sent as LeaderAndIsr, then UpdateMetadata, then
StopReplica, each after the response to the previous one, so that a broker knows its own role before
it learns of other leaders. A request without a response is repeated until the broker leaves.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.controller import broker_requests
from headrace.broker.controller.broker_requests import Role, Sender, Stop
from headrace.client.errors import Disconnected
from headrace.model.cluster_metadata import BrokerEntry, PartitionState
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, TopicId, TopicPartition
from headrace.wire import messages as m
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.peers import Peer, Peers

_log = logging.getLogger("headrace.controller")

_RETRY_S = 0.1

_Answer = TypeVar("_Answer", bound=Message)
ReplicasFailed = Callable[[BrokerId, list[TopicPartition]], None]
# The partitions that a broker could not stop; None if the broker left before it answered.
Stopped = list[TopicPartition] | None


class _Batch:
    """What the next requests tell a broker."""

    def __init__(self) -> None:
        self.roles: dict[TopicPartition, Role] = {}
        self.states: dict[TopicPartition, PartitionState] = {}
        self.updates_metadata = False  # True without ``states`` if only the live brokers changed
        self.stops: dict[TopicPartition, Stop] = {}
        self.waiting: list[asyncio.Future[Stopped]] = []

    @property
    def is_empty(self) -> bool:
        return not (self.roles or self.updates_metadata or self.stops or self.waiting)


class BrokerChannel:
    """The requests to one broker while it has one broker epoch."""

    def __init__(
        self,
        peer: "Peer",
        entry: BrokerEntry,
        sender: Sender,
        live_brokers: Callable[[], Mapping[BrokerId, BrokerEntry]],
        on_failed: ReplicasFailed,
        first: Iterable[PartitionState],
    ) -> None:
        """``first`` are the partitions of the first UpdateMetadata request."""
        self.broker_epoch = entry.broker_epoch
        self._broker_id = entry.broker_id
        self._peer = peer
        self._sender = sender
        self._live_brokers = live_brokers
        self._on_failed = on_failed
        self._first = _Batch()
        self._first.updates_metadata = True
        self._first.states = {state.topic_partition: state for state in first}
        self._next = _Batch()
        self._in_flight = self._first
        self._wake = asyncio.Event()
        self._closed = False

    # --- what to tell the broker

    def lead_or_follow(self, state: PartitionState, *, is_new: bool) -> None:
        before = self._next.roles.get(state.topic_partition)
        is_new = is_new or (before is not None and before.is_new)
        self._next.stops.pop(state.topic_partition, None)
        self._next.roles[state.topic_partition] = Role(state, is_new)
        self._wake.set()

    def update_metadata(self, states: Iterable[PartitionState]) -> None:
        self._next.updates_metadata = True
        for state in states:
            self._next.states[state.topic_partition] = state
        self._wake.set()

    def stop_replica(self, topic_partition: TopicPartition, stop: Stop) -> None:
        self._next.roles.pop(topic_partition, None)
        self._next.stops[topic_partition] = stop
        self._wake.set()

    def acknowledged(self) -> "asyncio.Future[Stopped]":
        """Done once the broker has answered everything so far, or has left."""
        future: asyncio.Future[Stopped] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(None)
        else:
            self._next.waiting.append(future)
            self._wake.set()
        return future

    # --- sending

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            await self._deliver(self._first)
            while True:
                await self._wake.wait()
                self._wake.clear()
                if not self._next.is_empty:
                    self._in_flight, self._next = self._next, _Batch()
                    await self._deliver(self._in_flight)
        finally:
            await self._peer.close()

    def close(self) -> None:
        """The broker has left: wake everything that waits for it. Then cancel ``run``."""
        self._closed = True
        for future in (*self._in_flight.waiting, *self._next.waiting):
            if not future.done():
                future.set_result(None)

    async def _deliver(self, batch: _Batch) -> None:
        if batch.roles:
            request = broker_requests.leader_and_isr(
                self._sender, self.broker_epoch, batch.roles.values(), self._live_brokers()
            )
            version = broker_requests.LEADER_AND_ISR_VERSION
            told = await self._send(request, m.LeaderAndIsrResponse, version)
            if self._check(request, told):
                self._check_roles(batch, told)
        if batch.updates_metadata:
            update = broker_requests.update_metadata(
                self._sender, self.broker_epoch, batch.states.values(), self._live_brokers()
            )
            version = broker_requests.UPDATE_METADATA_VERSION
            self._check(update, (await self._send(update, m.UpdateMetadataResponse, version)))
        failed: list[TopicPartition] = []
        if batch.stops:
            stop = broker_requests.stop_replica(self._sender, self.broker_epoch, batch.stops)
            version = broker_requests.STOP_REPLICA_VERSION
            answer = await self._send(stop, m.StopReplicaResponse, version)
            if not self._check(stop, answer):
                failed = list(batch.stops)
            failed += [
                TopicPartition(each.topic_name, each.partition_index)
                for each in answer.partition_errors
                if each.error_code != ErrorCode.NONE
            ]
        for future in batch.waiting:
            if not future.done():
                future.set_result(failed)

    async def _send(self, request: Message, kind: type[_Answer], api_version: int) -> _Answer:
        while True:
            try:
                return await self._peer.request(request, kind, api_version=api_version)
            except Disconnected as error:
                _log.debug("Repeating a request to broker %d: %s", self._broker_id, error)
                await asyncio.sleep(_RETRY_S)

    def _check(
        self,
        request: Message,
        answer: m.LeaderAndIsrResponse | m.UpdateMetadataResponse | m.StopReplicaResponse,
    ) -> bool:
        """A broker refuses a request as a whole if one of its epochs is outdated."""
        if answer.error_code == ErrorCode.NONE:
            return True
        _log.warning(
            "Broker %d refused %s of controller epoch %d with error %d",
            self._broker_id,
            type(request).__name__,
            self._sender.controller_epoch,
            answer.error_code,
        )
        return False

    def _check_roles(self, batch: _Batch, answer: m.LeaderAndIsrResponse) -> None:
        names: dict[TopicId, str] = {
            role.state.topic_id: role.state.topic for role in batch.roles.values()
        }
        failed = []
        for topic in answer.topics:
            name = names.get(TopicId(topic.topic_id))
            for each in topic.partition_errors:
                # The broker answers STALE_CONTROLLER_EPOCH for a leader epoch that it knows.
                if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR and name is not None:
                    failed.append(TopicPartition(name, each.partition_index))
        if failed:
            self._on_failed(self._broker_id, failed)


class BrokerChannels:
    """The channels to all live brokers, this one included."""

    def __init__(
        self,
        peers: "Peers",
        sender: Sender,
        live_brokers: Callable[[], Mapping[BrokerId, BrokerEntry]],
        *,
        timeout_s: float,
        on_failed: ReplicasFailed,
        fail: Callable[[BaseException], None],
    ) -> None:
        """``on_failed`` gets replicas that a broker cannot serve; ``fail`` gets a bug."""
        self._peers = peers
        self._sender = sender
        self._live_brokers = live_brokers
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._fail = fail
        self._channels: dict[BrokerId, BrokerChannel] = {}
        self._running: dict[BrokerId, asyncio.Task[None]] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def __getitem__(self, broker_id: BrokerId) -> BrokerChannel:
        return self._channels[broker_id]

    def __contains__(self, broker_id: BrokerId) -> bool:
        return broker_id in self._channels

    def open(self, entry: BrokerEntry, first: Iterable[PartitionState]) -> None:
        """A broker has joined; ``first`` are the partitions of its first metadata."""
        peer = self._peers.peer(
            entry.broker_id,
            str(self._sender.controller_id),
            timeout_s=self._timeout_s,
            find_broker=lambda broker_id: self._live_brokers().get(broker_id),
        )
        channel = BrokerChannel(
            peer, entry, self._sender, self._live_brokers, self._on_failed, first
        )
        task = asyncio.get_running_loop().create_task(channel.run())
        task.add_done_callback(self._ended)
        self._channels[entry.broker_id] = channel
        self._running[entry.broker_id] = task

    def close(self, broker_id: BrokerId) -> None:
        """A broker has left."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()
            task = self._running.pop(broker_id)
            self._ending[task] = None
            task.cancel()

    def close_all(self) -> None:
        for broker_id in list(self._channels):
            self.close(broker_id)

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._ending.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- what to tell several brokers

    def update_metadata(self, states: Iterable[PartitionState]) -> None:
        changed = list(states)
        if changed:
            for channel in self._channels.values():
                channel.update_metadata(changed)

    def update_live_brokers(self) -> None:
        for channel in self._channels.values():
            channel.update_metadata(())

    async def acknowledged(self, timeout_s: float) -> bool:
        """Wait until all live brokers have answered everything so far; False on a time-out."""
        waiting = [channel.acknowledged() for channel in self._channels.values()]
        if not waiting:
            return True
        _, pending = await asyncio.wait(waiting, timeout=max(0.0, timeout_s))
        return not pending
