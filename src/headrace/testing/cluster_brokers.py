"""The brokers of a test's cluster: starts and ends them, and keeps the faults between them.

A cut or a delay belongs to the link between two brokers, not to a run of them: it outlasts their
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


class BrokerSlot:
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

    def paused(self) -> None:
        self.state = State.PAUSED

    def resumed(self) -> None:
        self.state = State.RUNNING

    def ended(self) -> Member:
        member, self._member, self.state = self.member, None, State.STOPPED
        return member


class Brokers:
    def __init__(
        self, count: int, settings: Mapping[str, str], data: Path, environment: Environment
    ) -> None:
        self.slots = [
            BrokerSlot(broker_id, data / f"broker-{broker_id}") for broker_id in range(count)
        ]
        self.environment = environment
        self._settings = settings
        self._links: dict[tuple[int, int], Impairment] = {}  # between brokers, the lower id first
        self._tree_links: dict[int, Impairment] = {}
        self._full: set[int] = set()  # brokers with a full disk

    def slot(self, broker_id: Any) -> BrokerSlot:
        if not isinstance(broker_id, int) or not 0 <= broker_id < len(self.slots):
            raise ValueError(
                f"expected the id of a broker, 0 to {len(self.slots) - 1}; got {broker_id!r}"
            )
        return self.slots[broker_id]

    def keeps_session(self, slot: BrokerSlot) -> bool:
        """Whether the broker runs and reaches the tree, so that it keeps its session."""
        link = self._tree_links.get(slot.broker_id, NO_IMPAIRMENT)
        return slot.state is State.RUNNING and not link.cut

    # --- runs ----------------------------------------------------------------

    def start(self, slots: Iterable[BrokerSlot]) -> None:
        """Start brokers side by side. Raises the first error after all have started or failed."""
        begun = []
        for slot in slots:
            member = self.environment.member(
                slot.broker_id,
                {
                    "broker.id": str(slot.broker_id),
                    "listeners": f"PLAINTEXT://{slot.host}:{slot.port}",
                    "log.dirs": str(slot.data),
                    **self._settings,
                },
                self._impairments(slot),
                slot.data,
            )
            member.begin()
            begun.append((slot, member))
        errors = []
        for slot, member in begun:
            try:
                member.wait_started()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
            else:
                slot.started(member)
                if slot.broker_id in self._full:
                    member.fill_disk()
        if errors:
            raise errors[0]

    def stop(self, slots: Sequence[BrokerSlot]) -> None:
        """Stop brokers side by side. Raises the first error after all have ended."""
        members = [slot.ended() for slot in slots if slot.state is not State.STOPPED]
        if not members:
            return
        with ThreadPoolExecutor(len(members)) as threads:
            ends = [threads.submit(member.stop) for member in members]
        for end in ends:
            end.result()

    def end(self, *, clean: bool) -> None:
        """Stop all brokers cleanly, or kill them. Raises the first error after all have ended."""
        self.heal()
        for slot in self.slots:
            self.resume(slot)
        if clean:
            self.stop(self.slots)
            return
        errors = []
        for slot in self.slots:
            if slot.state is not State.STOPPED:
                try:
                    self.kill(slot)
                except BrokerFailed as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def restart(self, slot: BrokerSlot) -> None:
        self.resume(slot)
        self.stop([slot])
        self.start([slot])

    def kill(self, slot: BrokerSlot) -> None:
        if slot.state is State.PAUSED:  # a loop that waits cannot end
            slot.member.resume()
        self.environment.kill(slot.broker_id, slot.ended())

    def pause(self, slot: BrokerSlot) -> None:
        if slot.state is not State.PAUSED:
            self.environment.pause(slot.broker_id, slot.member)
            slot.paused()

    def resume(self, slot: BrokerSlot) -> None:
        if slot.state is State.PAUSED:
            self.environment.resume(slot.broker_id, slot.member)
            slot.resumed()

    # --- faults --------------------------------------------------------------

    def change_link(
        self, a: BrokerSlot, b: BrokerSlot, change: Callable[[Impairment], Impairment]
    ) -> None:
        """Cut, heal or slow the link between two brokers."""
        link = (min(a.broker_id, b.broker_id), max(a.broker_id, b.broker_id))
        self._links[link] = change(self._links.get(link, NO_IMPAIRMENT))
        self._impair([a, b])

    def change_tree_link(
        self, slot: BrokerSlot, change: Callable[[Impairment], Impairment]
    ) -> None:
        """The same for the link between a broker and the tree."""
        impairment = change(self._tree_links.get(slot.broker_id, NO_IMPAIRMENT))
        self.environment.impair_tree(slot.broker_id, impairment)
        self._tree_links[slot.broker_id] = impairment

    def fill_disk(self, slot: BrokerSlot) -> None:
        slot.member.fill_disk()
        self._full.add(slot.broker_id)

    def heal(self) -> None:
        """End all cuts and delays, and free the disks."""
        self._links.clear()
        self._impair(self.slots)
        for broker_id in self._tree_links:
            self.environment.impair_tree(broker_id, NO_IMPAIRMENT)
        self._tree_links.clear()
        for slot in self.slots:
            if slot.broker_id in self._full and slot.state is not State.STOPPED:
                slot.member.free_disk()
        self._full.clear()

    def _impair(self, slots: Iterable[BrokerSlot]) -> None:
        for slot in slots:
            if slot.state is not State.STOPPED:
                slot.member.impair(self._impairments(slot))

    def _impairments(self, slot: BrokerSlot) -> dict[int, Impairment]:
        """The ways of one broker, by the port of the other."""
        others = {
            (b if a == slot.broker_id else a): impairment
            for (a, b), impairment in self._links.items()
            if slot.broker_id in (a, b)
        }
        return {self.slots[other].port: impairment for other, impairment in others.items()}
