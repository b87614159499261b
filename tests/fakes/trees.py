"""Trees in memory for tests, with faults that a test scripts."""

from collections.abc import Sequence

from headrace.coordination.memory import Delivery, Faults, MemorySession, MemoryTree
from headrace.coordination.tree import Operation
from tests.fakes.standin import StillWorld


class ScriptedFaults(Faults):
    """``deliveries`` are those of the next writes; later writes succeed."""

    def __init__(self, *deliveries: Delivery, lag: float = 0.0, watch_delay: float = 0.0) -> None:
        self.deliveries = list(deliveries)
        self._lag = lag
        self._watch_delay = watch_delay

    def write(self, operations: Sequence[Operation]) -> Delivery:
        return self.deliveries.pop(0) if self.deliveries else Delivery.ANSWERED

    def lag(self) -> float:
        return self._lag

    def watch_delay(self) -> float:
        return self._watch_delay


def memory_tree() -> MemoryTree:
    return MemoryTree(StillWorld().now)


async def dump(session: MemorySession, root: str = "/") -> dict[str, tuple[bytes, int, int]]:
    """Every node below ``root``: its value, version and owner."""
    await session.sync()
    nodes: dict[str, tuple[bytes, int, int]] = {}
    pending = [root]
    while pending:
        path = pending.pop()
        node = await session.get(path)
        assert node is not None
        nodes[path] = (node.value, node.zk_version, node.ephemeral_owner)
        pending += [f"{path.rstrip('/')}/{name}" for name in await session.children(path) or ()]
    return nodes
