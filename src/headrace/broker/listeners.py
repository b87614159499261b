"""The listeners of a broker, and the connections that they have accepted."""

import asyncio
from collections.abc import Callable

from headrace.model.cluster_metadata import Endpoint
from headrace.model.config import BrokerConfig
from headrace.net.buffers import BufferPool
from headrace.net.link import Service
from headrace.net.listener import ConnectionLimits, CreationRate, Listener
from headrace.net.outbox import Outbox
from headrace.world.event_loop import ready_counter
from headrace.world.world import World

_REQUEST_MEMORY_MIN = 256 << 20
_STOP_GRACE_S = 0.5
# A smaller buffer wakes the loop too often. A buffer that the kernel grows does not fit in the
# processor's cache, and sending then takes half as long again.
_SEND_BUFFER_SIZE = 256 << 10


class Listeners:
    """``bind`` early, ``accept`` once requests can be handled."""

    def __init__(self, config: BrokerConfig, world: World, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._world = world
        self._loop = loop
        self.limits = ConnectionLimits(
            config.int("max.connections"),
            config.int("max.connections.per.ip"),
            config.connection_limits_by_host(),
            CreationRate(config.int("max.connection.creation.rate")),
        )
        self._listeners: list[Listener] = []
        self.addresses: dict[str, tuple[str, int]] = {}  # as bound, by listener name

    def bind(self) -> None:
        """Bind all addresses, without accepting yet. Raises OSError."""
        config = self._config
        request_size_max = config.int("socket.request.max.bytes")
        memory = config.int("queued.max.request.bytes")
        if memory <= 0:
            memory = max(_REQUEST_MEMORY_MIN, 2 * request_size_max)
        pool = BufferPool(memory)
        outbox = Outbox(self._loop, ready_counter(self._loop))
        for address in config.listeners:
            listener = Listener(
                self._world.network,
                address.name,
                address.host,
                address.port,
                limits=self.limits,
                pool=pool,
                outbox=outbox,
                frame_size_max=request_size_max,
                send_buffer_size=self._socket_buffer("socket.send.buffer.bytes", _SEND_BUFFER_SIZE),
                receive_buffer_size=self._socket_buffer("socket.receive.buffer.bytes", -1),
                backlog=config.int("socket.listen.backlog.size"),
                connections_max=config.limit_of_listener(address.name, "max.connections"),
                creation_rate=CreationRate(
                    config.limit_of_listener(address.name, "max.connection.creation.rate")
                ),
            )
            self._listeners.append(listener)
            self.addresses[address.name] = listener.bind()

    def _socket_buffer(self, name: str, unless_given: int) -> int | None:
        """None leaves the size to the kernel, which grows it as needed; -1 asks for that."""
        config = self._config
        size = config.int(name) if config.given_text(name) is not None else unless_given
        return size if size > 0 else None

    def endpoints(self) -> dict[str, Endpoint]:
        """The address that each listener advertises, with the bound host and port as defaults."""
        endpoints = {}
        for advertised in self._config.advertised_listeners:
            bound_host, bound_port = self.addresses[advertised.name]
            endpoints[advertised.name] = Endpoint(
                advertised.host or bound_host or self._world.host_name(),
                advertised.port or bound_port,
                advertised.protocol,
            )
        return endpoints

    def accept(self, service: Service) -> None:
        for listener in self._listeners:
            listener.accept_from_now_on(self._loop, service)

    def config_changed(self, config: BrokerConfig) -> None:
        self.limits.update(
            config.int("max.connections"),
            config.int("max.connections.per.ip"),
            config.connection_limits_by_host(),
            rate_max=config.int("max.connection.creation.rate"),
        )

    # --- the end

    def close(self) -> None:
        """Accept no more connections; the accepted ones stay open."""
        for listener in self._listeners:
            listener.close()

    async def let_clients_finish(self, has_work: Callable[[], bool]) -> None:
        """Wait a moment until finished responses are sent; skip idle connections."""
        give_up_at = self._loop.time() + _STOP_GRACE_S
        for link in self.limits.links:
            link.mute()  # new requests would keep it busy forever
        while self._loop.time() < give_up_at:
            busy = [link for link in self.limits.links if not link.idle]
            if not busy and not has_work():
                return
            await asyncio.sleep(0.01)

    def close_links(self) -> None:
        for link in list(self.limits.links):
            link.close()
