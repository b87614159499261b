"""The brokers of a test's cluster: starts and ends them, and keeps the faults between them.

A cut or a delay belongs to the way between two brokers, not to a run of them: it outlasts their
restarts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.testing.environments import Environment
from headrace.testing.members import Member
from headrace.testing.network_faults import NO_IMPAIRMENT, Impairment
from headrace.testing.runners import BrokerFailed


class State(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"  # or killed


class Place:
    """What a broker keeps over its restarts, and its current run."""

    def __init__(self, broker_id: int, data: Path) -> None:
        self.broker_id = broker_id
        self.data = data
        self.host, self.port = "127.0.0.1", 0
        self.state = State.STOPPED
        self._member: Member | None = None

    @property
    def member(self) -> Member:
        if self._member is None:
            raise RuntimeError(
                f"broker {self.broker_id} is not running; restart({self.broker_id}) starts it"
            )
        return self._member

    def started(self, member: Member) -> None:
        self._member, self.state = member, State.RUNNING
        self.host, self.port = member.host, member.port

    def ended(self) -> Member:
        member, self._member, self.state = self.member, None, State.STOPPED
        return member


class Brokers:
    def __init__(
        self, count: int, settings: Mapping[str, str], data: Path, environment: Environment
    ) -> None:
        self.places = [Place(broker_id, data / f"broker-{broker_id}") for broker_id in range(count)]
        self.environment = environment
        self._settings = settings
        self._ways: dict[tuple[int, int], Impairment] = {}  # between brokers, the lower id first
        self._tree_ways: dict[int, Impairment] = {}
        self._full: set[int] = set()  # brokers with a full disk

    def place(self, broker_id: Any) -> Place:
        if not isinstance(broker_id, int) or not 0 <= broker_id < len(self.places):
            raise ValueError(
                f"expected the id of a broker, 0 to {len(self.places) - 1}; got {broker_id!r}"
            )
        return self.places[broker_id]

    def is_heard(self, place: Place) -> bool:
        """Whether the broker runs and reaches the tree, so that it keeps its session."""
        way = self._tree_ways.get(place.broker_id, NO_IMPAIRMENT)
        return place.state is State.RUNNING and not way.cut

    # --- runs ----------------------------------------------------------------

    def start(self, places: Iterable[Place]) -> None:
        """Start brokers side by side. Raises the first error after all have started or failed."""
        begun = []
        for place in places:
            member = self.environment.member(
                place.broker_id,
                {
                    "broker.id": str(place.broker_id),
                    "listeners": f"PLAINTEXT://{place.host}:{place.port}",
                    "log.dirs": str(place.data),
                    **self._settings,
                },
                self._impairments(place),
                place.data,
            )
            member.begin()
            begun.append((place, member))
        errors = []
        for place, member in begun:
            try:
                member.wait_started()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
            else:
                place.started(member)
                if place.broker_id in self._full:
                    member.fill_disk()
        if errors:
            raise errors[0]

    def stop(self, places: Sequence[Place]) -> None:
        """Stop brokers side by side. Raises the first error after all have ended."""
        members = [place.ended() for place in places if place.state is not State.STOPPED]
        if not members:
            return
        with ThreadPoolExecutor(len(members)) as threads:
            ends = [threads.submit(member.stop) for member in members]
        for end in ends:
            end.result()

    def end(self, *, clean: bool) -> None:
        """Stop all brokers cleanly, or kill them. Raises the first error after all have ended."""
        self.heal()
        for place in self.places:
            self.resume(place)
        if clean:
            self.stop(self.places)
            return
        errors = []
        for place in self.places:
            if place.state is not State.STOPPED:
                try:
                    self.kill(place)
                except BrokerFailed as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def restart(self, place: Place) -> None:
        self.resume(place)
        self.stop([place])
        self.start([place])

    def kill(self, place: Place) -> None:
        if place.state is State.PAUSED:  # a loop that waits cannot end
            place.member.resume()
        self.environment.kill(place.broker_id, place.ended())

    def pause(self, place: Place) -> None:
        if place.state is not State.PAUSED:
            self.environment.pause(place.broker_id, place.member)
            place.state = State.PAUSED

    def resume(self, place: Place) -> None:
        if place.state is State.PAUSED:
            self.environment.resume(place.broker_id, place.member)
            place.state = State.RUNNING

    # --- faults --------------------------------------------------------------

    def change_way(self, a: Place, b: Place, change: Callable[[Impairment], Impairment]) -> None:
        """Cut, heal or slow the way between two brokers."""
        way = (min(a.broker_id, b.broker_id), max(a.broker_id, b.broker_id))
        self._ways[way] = change(self._ways.get(way, NO_IMPAIRMENT))
        self._impair([a, b])

    def change_tree_way(self, place: Place, change: Callable[[Impairment], Impairment]) -> None:
        """The same for the way between a broker and the tree."""
        impairment = change(self._tree_ways.get(place.broker_id, NO_IMPAIRMENT))
        self.environment.impair_tree(place.broker_id, impairment)
        self._tree_ways[place.broker_id] = impairment

    def fill_disk(self, place: Place) -> None:
        place.member.fill_disk()
        self._full.add(place.broker_id)

    def heal(self) -> None:
        """End all cuts and delays, and free the disks."""
        self._ways.clear()
        self._impair(self.places)
        for broker_id in self._tree_ways:
            self.environment.impair_tree(broker_id, NO_IMPAIRMENT)
        self._tree_ways.clear()
        for place in self.places:
            if place.broker_id in self._full and place.state is not State.STOPPED:
                place.member.free_disk()
        self._full.clear()

    def _impair(self, places: Iterable[Place]) -> None:
        for place in places:
            if place.state is not State.STOPPED:
                place.member.impair(self._impairments(place))

    def _impairments(self, place: Place) -> dict[int, Impairment]:
        """The ways of one broker, by the port of the other."""
        others = {
            (b if a == place.broker_id else a): impairment
            for (a, b), impairment in self._ways.items()
            if place.broker_id in (a, b)
        }
        return {self.places[other].port: impairment for other, impairment in others.items()}
