"""Whole brokers in one simulated cluster: their processes, disks, network and coordination tree.

The brokers are those of production; only their worlds are simulated. A ``SimulatedBroker`` is one
machine that keeps its disk while processes come and go on it.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.coordination.tree import SessionLost, TreeError
from headrace.model.config import BrokerConfig
from headrace.model.errors import ConfigError
from tests.sim.clients.session import ClientSession
from tests.sim.files import SimulatedDisk, SimulatedFiles
from tests.sim.loop import SimulatedLoop, SimulatedProcess, current_process
from tests.sim.network import SimulatedNetwork
from tests.sim.plan import CLIENTS
from tests.sim.tree import SimulatedEnsemble, TreeFaultRates
from tests.sim.world import SimulatedWorld, wall_clock_ns

PORT = 9092
LOG_DIR = "/data"
_START_AGAIN_S = 0.5


class SimulatedBroker:
    """The machine of one broker, with a supervisor that starts the broker if it should run."""

    def __init__(
        self, cluster: "SimulatedCluster", broker_id: int, settings: dict[str, str], skew_ms: int
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.host = f"broker-{broker_id}"
        self.disk = SimulatedDisk(lambda: wall_clock_ns(cluster.loop))
        self.broker: Broker | None = None  # of the running process
        self.world: SimulatedWorld | None = None
        self.process: SimulatedProcess | None = None
        self._running: asyncio.Task[None] | None = None
        self._skew_ms = skew_ms
        # Its own, so that its draws do not depend on how often the others start.
        self._dice = random.Random(cluster.dice.getrandbits(64))
        self._config = BrokerConfig.parse(
            {
                **settings,
                "broker.id": str(broker_id),
                "listeners": f"PLAINTEXT://{self.host}:{PORT}",
                "log.dirs": LOG_DIR,
            }
        )
        self._change = asyncio.Lock()  # one start, stop or kill at a time

    @property
    def is_changing(self) -> bool:
        """Whether it is being started, stopped or killed."""
        return self._change.locked()

    @property
    def has_failed_disk(self) -> bool:
        services = None if self.broker is None else self.broker.services
        return services is not None and any(
            directory.offline is not None for directory in services.logs.directories
        )

    def remove_logs(self) -> None:
        """Delete the directories of all partitions. The log directory itself stays known."""
        files = SimulatedFiles(self.disk)
        for name in files.directories_in(LOG_DIR):
            files.remove_tree(f"{LOG_DIR}/{name}")

    # --- processes

    async def start(self) -> None:
        """Start the broker, again and again until it runs or is killed."""
        async with self._change:
            if self.broker is not None:
                return
            cluster = self.cluster
            cluster.ensemble.restart(self.host)
            self.process = SimulatedProcess(cluster.loop)
            self.world = SimulatedWorld(
                cluster.loop, self._dice, cluster.network, self.disk, self.host, self._skew_ms
            )
            self._running = self.process.spawn(self._run(self.world))

    async def _run(self, world: SimulatedWorld) -> None:
        """In the process: what its main function does."""
        broker = self.broker = Broker(
            self._config, world=world, open_tree=self._open_tree, is_tree_shared=True
        )
        try:
            await broker.start()
        except (ConfigError, OSError, TreeError) as error:
            self.cluster.note(f"{self.host} did not start: {error}")
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a finding
            if self.world is world:
                self.cluster.fail(f"{self.host} did not start: {error!r}")
        else:
            self.cluster.note(f"{self.host} runs")
            await broker.wait_stopped()
        if self.world is world:  # not killed: it stopped for a reason of its own
            if broker.failure is not None:
                self.cluster.fail(f"{self.host} stopped: {broker.failure!r}")
            self._end_process(world.kill)
            self.cluster.later(_START_AGAIN_S, self.start)

    async def _open_tree(self, logs: Any, world: Any) -> Any:
        if self.world is not world:
            raise SessionLost("/")  # a task of a killed process
        return self.cluster.ensemble.open_session(self.host)

    def _end_process(self, end: Callable[[], None]) -> Broker | None:
        broker, self.broker = self.broker, None
        process, self.process = self.process, None
        self.world = None
        if broker is not None:
            self._collect_bugs(broker)
            end()
            self.cluster.ensemble.kill(self.host)
        if process is not None:
            process.resume()  # so that its tasks can end; its world is dead
        return broker

    def _collect_bugs(self, broker: Broker) -> None:
        for bug in broker.bugs:
            self.cluster.fail(f"{self.host} has a bug: {bug!r}")

    async def kill(self, *, power_loss: bool = False) -> None:
        async with self._change:
            world = self.world
            if world is None:
                if power_loss:
                    self.disk.lose_power()
                return
            broker = self._end_process(world.lose_power if power_loss else world.kill)
            if power_loss:
                self.disk.lose_power()
            await self._crash(broker)

    async def _crash(self, broker: Broker | None) -> None:
        """Let the tasks of a killed process end. Nothing that they do has an effect."""
        running, self._running = self._running, None
        if broker is not None and running is not None:
            if broker.services is None:
                running.cancel()  # it was still starting
            await broker.crash()
            await asyncio.wait([running])

    def die_writing(self, share: float, down_s: float) -> None:
        """Kill the process within its next write, and start it again after ``down_s``."""
        if self.world is None:
            return
        world = self.world

        def die() -> None:
            if self.world is world:
                broker = self._end_process(world.kill)
                self.cluster.note(f"{self.host} dies in a write")
                self.cluster.later(0, lambda: self._crash(broker))
                self.cluster.later(down_s, self.start)

        world.files.die_writing(share, die)

    async def stop(self) -> None:
        """A clean shutdown."""
        async with self._change:
            broker, world = self.broker, self.world
            if broker is None or world is None or self.process is None:
                return
            self.world = None  # its end is no failure
            stopping = self.process.spawn(broker.stop())
            await asyncio.wait([stopping], timeout=60)
            if not stopping.done():
                self.cluster.fail(f"{self.host} does not stop")
            elif broker.failure is not None:
                self.cluster.fail(f"{self.host} stopped with {broker.failure!r}")
            self._end_process(world.kill)

    def pause(self) -> None:
        if self.process is not None:
            self.process.pause()
            self.cluster.ensemble.pause(self.host)

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()
        self.cluster.ensemble.resume(self.host)

    def spare(self) -> None:
        """Take back a ``die_writing`` that has not happened yet."""
        if self.world is not None:
            self.world.files.spare()

    def jump_clock(self, by_ms: int) -> None:
        self._skew_ms += by_ms
        if self.world is not None:
            self.world.jump_clock(by_ms)


class SimulatedCluster:
    """Brokers with ids 0 to ``count`` - 1, none of them started."""

    def __init__(
        self,
        dice: random.Random,
        count: int,
        settings: dict[str, str],
        *,
        session_timeout_s: float,
        tree_rates: TreeFaultRates,
        releases_sessions: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.loop = loop
        self.dice = dice
        self.started_at = loop.time()
        self.network = SimulatedNetwork(loop, random.Random(dice.getrandbits(64)))
        self.ensemble = SimulatedEnsemble(
            loop,
            dice.getrandbits(64),
            tree_rates,
            session_timeout_s,
            releases_sessions=releases_sessions,
        )
        client_disk = SimulatedDisk(lambda: wall_clock_ns(loop))
        self._client_worlds = [
            SimulatedWorld(loop, dice, self.network, client_disk, host) for host in CLIENTS
        ]
        self._session_count = 0
        self.brokers = [
            SimulatedBroker(self, broker_id, settings, dice.choice([0, 0, -5_000, 60_000]))
            for broker_id in range(count)
        ]
        self.events: list[str] = []
        self.failures: list[str] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    def note(self, event: str) -> None:
        self.events.append(f"{self.loop.time() - self.started_at:9.4f}  {event}")

    def fail(self, failure: str) -> None:
        """A finding that is no anomaly of the history."""
        self.note(failure)
        self.failures.append(failure)

    def running_host(self) -> str:
        """The host of the process that runs now."""
        process = current_process()
        hosts = [b.host for b in self.brokers if process is not None and b.process is process]
        return hosts[0] if hosts else ""

    def later(self, seconds: float, act: Callable[[], Any]) -> None:
        """Run a coroutine function in the background."""

        async def work() -> None:
            await asyncio.sleep(seconds)
            await act()

        task = self.loop.create_task(work(), context=self.network.context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(f"the simulation failed: {error!r}")

    def session(self, name: str) -> ClientSession:
        """A client that knows all brokers, on one of the hosts of clients."""
        self._session_count += 1
        world = self._client_worlds[self._session_count % len(self._client_worlds)]
        return ClientSession(
            name,
            world.network.dial,
            [(broker.host, PORT) for broker in self.brokers],
            random.Random(self.dice.getrandbits(64)),
        )

    async def start(self) -> None:
        for broker in self.brokers:
            await broker.start()

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
