"""Create, change and delete topics on any broker, with the stock client."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.node import Node
from bench.run import wait_until


def _admin(address: str) -> AdminClient:
    # The caller keeps a reference until its futures are done: they end with the client.
    return AdminClient({"bootstrap.servers": address, "log_level": "2"})


def _finish(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(60)


def create(
    address: str,
    topic: str,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    replication_factor: int = 1,
    replicas: Sequence[Sequence[int]] | None = None,
) -> None:
    """Create a topic and wait until every partition has a leader.

    ``replicas`` are the brokers of each partition, in place of ``replication_factor``.
    """
    admin = _admin(address)
    if replicas is None:
        made = NewTopic(topic, partitions, replication_factor, config=dict(settings or {}))
    else:
        assigned = [list(each) for each in replicas]
        made = NewTopic(
            topic, len(assigned), replica_assignment=assigned, config=dict(settings or {})
        )
    _finish(admin.create_topics([made], operation_timeout=30))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(seen) == partitions and all(entry.leader >= 0 for entry in seen.values()):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{topic} on {address} has no leaders")


def delete(node: Node, topic: str) -> None:
    """Delete a topic, so that the next round can use its memory in the page cache.

    The broker deletes the files a moment later. That takes a quarter of a second per gigabyte and
    would disturb the next measurement, so this waits until they are gone.
    """
    admin = _admin(node.address)
    _finish(admin.delete_topics([topic], operation_timeout=30))
    wait_until(
        lambda: not any(node.data.glob(f"**/{topic}-[0-9]*")),
        120,
        f"files of {topic} on {node.name}",
    )


def set_configs(address: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of an existing topic."""
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    admin = _admin(address)
    _finish(admin.incremental_alter_configs([resource]))
