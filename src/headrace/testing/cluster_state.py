"""What a test asks about a cluster: is it ready, who leads, who is the controller, who is in sync.

Leaders and the controller come from the coordination tree, where the truth is. A broker that was
cut off would give an old answer.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected
from headrace.coordination import paths, values
from headrace.wire import messages as m

Result = TypeVar("Result")
Read = Callable[[str], bytes | None]  # the value of a node of the tree

TIMEOUT_S = 30.0
_POLL_S = 0.005
_CLIENT_ID = "headrace-testing"
_METADATA_VERSION = 12


def wait_for(look: Callable[[], Result | None], otherwise: Callable[[], str]) -> Result:
    """The first result of ``look`` that is not None; ``otherwise`` says what is there instead."""
    give_up_at = time.monotonic() + TIMEOUT_S
    while (found := look()) is None:
        if time.monotonic() >= give_up_at:
            raise TimeoutError(f"{otherwise()} after {TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
    return found


def wait_ready(addresses: Sequence[tuple[str, int]]) -> None:
    """Wait until every broker knows all brokers and the controller."""
    for host, port in addresses:
        with Connection(host, port, client_id=_CLIENT_ID, versions={}) as connection:
            _wait_until_complete(connection, len(addresses))


def _wait_until_complete(connection: Connection, broker_count: int) -> None:
    known = m.MetadataResponse()

    def look() -> bool | None:
        nonlocal known
        request = m.MetadataRequest(topics=[])
        known = connection.request(request, m.MetadataResponse, api_version=_METADATA_VERSION)
        ids = [broker.node_id for broker in known.brokers]
        return (len(ids) == broker_count and known.controller_id in ids) or None

    wait_for(
        look,
        lambda: (
            f"{connection.address} knows {len(known.brokers)} of {broker_count} brokers, and "
            f"the controller {known.controller_id},"
        ),
    )


def controller_id(read: Read) -> int | None:
    value = read(paths.CONTROLLER)
    return None if value is None else int(values.decode_controller(value))


def leader_of(read: Read, topic: str, partition: int) -> int | None:
    """None if the partition has no leader, or does not exist yet."""
    value = read(paths.state(topic, partition))
    leader = -1 if value is None else int(values.decode_state(topic, partition, value).leader)
    return leader if leader >= 0 else None


def all_know_leader(
    addresses: Sequence[tuple[str, int]], topic: str, partition: int, leader: int
) -> bool:
    """Whether every broker names this leader to clients. They learn of it a moment later."""
    name = m.MetadataRequest.MetadataRequestTopic(name=topic)
    request = m.MetadataRequest(topics=[name], allow_auto_topic_creation=False)
    for host, port in addresses:
        try:
            with Connection(host, port, client_id=_CLIENT_ID, versions={}) as connection:
                known = connection.request(
                    request, m.MetadataResponse, api_version=_METADATA_VERSION
                )
        except Disconnected:
            return False  # it is starting or stopping
        named = {each.partition_index: each.leader_id for each in known.topics[0].partitions}
        if named.get(partition) != leader:
            return False
    return True


def out_of_sync(read: Read, topic: str) -> dict[int, list[int]]:
    """The partitions whose ISR lacks replicas, with the missing ones."""
    value = read(paths.topic(topic))
    if value is None:
        raise LookupError(f"the cluster has no topic {topic}")
    lacking = {}
    for partition, replicas in enumerate(values.decode_topic(topic, value).replicas):
        state = read(paths.state(topic, partition))
        isr = () if state is None else values.decode_state(topic, partition, state).isr
        missing = sorted(set(map(int, replicas)) - set(map(int, isr)))
        if missing:
            lacking[partition] = missing
    return lacking
