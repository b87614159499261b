"""One run of the benchmark: its size, its sides, and the samples that it collects."""

import contextlib
import mmap
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.apache_kafka import KafkaNode
from bench.node import HeadraceNode, Node
from bench.report import Row, Target, median

SIDES: dict[str, type[Node]] = {"headrace": HeadraceNode, "kafka": KafkaNode}

# Deleted segments leave the disk soon, so that rounds do not pile up. The same for every broker.
SETTINGS = {"log.segment.delete.delay.ms": "1000", "log.retention.ms": "-1"}


@dataclass
class Run:
    """The options of the command line, and the directory for data."""

    scratch: Path
    rounds: int
    quick: bool
    sides: tuple[str, ...] = ("headrace", "kafka")
    kinds: Mapping[str, type[Node]] = field(default_factory=lambda: SIDES)
    _directories: int = 0

    def sized(self, full: int, quick: int) -> int:
        """The full count, or the one for a smoke test."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def node(
        self,
        side: str,
        settings: Mapping[str, str] | None = None,
        kind: type[Node] | None = None,
    ) -> Node:
        """A node with its own directory, not started."""
        self._directories += 1
        directory = self.scratch / f"{side}-{self._directories}"
        return (kind or self.kinds[side])(directory, settings=SETTINGS | dict(settings or {}))

    @contextlib.contextmanager
    def nodes(self, settings: Mapping[str, str] | None = None) -> Iterator[dict[str, Node]]:
        """Start a node per side, for alternating rounds."""
        with contextlib.ExitStack() as stack:
            started = {side: self.node(side, settings) for side in self.sides}
            for node in started.values():
                stack.enter_context(node)
            yield started


class Samples:
    """Values by side and metric; a figure's rows are their medians."""

    def __init__(self, figure: str) -> None:
        self.figure = figure
        self._values: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, side: str, metric: str, value: float) -> None:
        self._values[side, metric].append(value)

    def get(self, side: str, metric: str) -> float | None:
        return median(self._values[side, metric])

    def row(
        self,
        metric: str,
        unit: str,
        *targets: Target,
        ours: str = "headrace",
        peer: str | None = None,
        beside: str = "Apache Kafka",
    ) -> Row:
        """A row with the medians of two sides; by default of ours and the only other one."""
        if peer is None:
            others = [side for side, kept in self._values if kept == metric and side != ours]
            peer = others[0] if others else "kafka"
        return Row(
            self.figure,
            metric,
            unit,
            self.get(ours, metric),
            self.get(peer, metric),
            targets,
            max(len(self._values[ours, metric]), len(self._values[peer, metric])),
            beside,
        )


def turns(nodes: Mapping[str, Node], round_number: int) -> list[tuple[str, Node]]:
    """The order of the sides in a round; it alternates.

    Each side pays for what the one before left behind, above all dirty pages.
    """
    in_order = list(nodes.items())
    return in_order if round_number % 2 else in_order[::-1]


@contextlib.contextmanager
def cpu_of(node: Node, into: list[float]) -> Iterator[None]:
    """Append the processor seconds that a broker used within the block."""
    before = node.cpu_seconds()
    yield
    into.append(node.cpu_seconds() - before)


def warm_memory(size: int) -> None:
    """Touch as much memory as a round will fill, and release it.

    In a virtual machine the first use of a page that the host has reclaimed costs up to a second
    per GB. The broker that writes there first would pay for it.
    """
    with mmap.mmap(-1, size) as memory:
        for position in range(0, size, mmap.PAGESIZE):
            memory[position] = 1


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> float:
    """Wait for a condition to become true. Return the seconds that it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit_s:
            raise TimeoutError(f"timed out after {limit_s:.0f} s: {what}")
        time.sleep(0.005)
    return time.monotonic() - start
