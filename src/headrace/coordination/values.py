"""The values of nodes in the coordination tree: Kafka 3.9's JSON, to and from our types.

Pure. Decoding ignores unknown keys, which a newer writer may add, and raises ``Corrupt`` if a
required key is missing. Encoding returns the bytes that Kafka writes. In Kafka's nodes a higher
version adds keys, so it is read as well; one of our own nodes with a higher version is refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.coordination import paths
from headrace.model.cluster_metadata import (
    BrokerEntry,
    Endpoint,
    LevelRange,
    PartitionState,
    TopicDirectories,
    TopicState,
)
from headrace.model.errors import Corrupt
from headrace.model.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
    id_from_text,
    id_to_text,
)

_FEATURE_VERSION = 2
_DIRECTORIES_VERSION = 1


def encode_broker(entry: BrokerEntry, now: int) -> bytes:
    first = next(iter(entry.endpoints.values()))
    value: dict[str, Any] = {
        "features": {
            name: {"min_version": levels.lowest, "max_version": levels.highest}
            for name, levels in entry.features.items()
        },
        "listener_security_protocol_map": {
            name: endpoint.security_protocol for name, endpoint in entry.endpoints.items()
        },
        "endpoints": [
            f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"
            for name, (host, port, _) in entry.endpoints.items()
        ],
    }
    if entry.rack is not None:
        value["rack"] = entry.rack
    if entry.may_have_lost_records:
        value["headrace"] = {"may_have_lost_records": True}  # Kafka ignores it
    value |= {"jmx_port": -1, "port": first.port, "host": first.host}
    return _dump(value | {"version": 5, "timestamp": str(now)})


def decode_broker(broker_id: BrokerId, value: bytes, created_zxid: int) -> BrokerEntry:
    found = _load(paths.broker(broker_id), value)
    try:
        protocols = found["listener_security_protocol_map"]
        endpoints = {}
        for text in found["endpoints"]:
            name, _, address = text.partition("://")
            host, _, port = address.rpartition(":")
            endpoints[name] = Endpoint(host.strip("[]"), int(port), protocols[name])
        features = {
            str(name): LevelRange(int(levels["min_version"]), int(levels["max_version"]))
            for name, levels in found.get("features", {}).items()
        }
        lost = found.get("headrace", {}).get("may_have_lost_records") is True
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(paths.broker(broker_id), error) from error
    return BrokerEntry(broker_id, endpoints, found.get("rack"), created_zxid, features, lost)


def encode_topic(topic: TopicState) -> bytes:
    partitions = topic.partitions
    return _dump(
        {
            "partitions": {str(p.partition): p.replicas for p in partitions},
            "topic_id": id_to_text(topic.topic_id),
            "adding_replicas": {str(p.partition): p.adding for p in partitions if p.adding},
            "removing_replicas": {str(p.partition): p.removing for p in partitions if p.removing},
            "version": 3,
        }
    )


class Assignment(NamedTuple):
    """The value of a topic's node: replicas of each partition, and reassignments in progress."""

    topic_id: TopicId | None  # None before Kafka 2.8, which had no ids
    replicas: Sequence[tuple[BrokerId, ...]]
    adding: Mapping[int, tuple[BrokerId, ...]]
    removing: Mapping[int, tuple[BrokerId, ...]]


def decode_topic(topic: str, value: bytes) -> Assignment:
    found = _load(paths.topic(topic), value)
    try:
        partitions = found["partitions"]
        topic_id = found.get("topic_id")
        return Assignment(
            TopicId(id_from_text(topic_id)) if topic_id else None,
            [tuple(partitions[str(partition)]) for partition in range(len(partitions))],
            {int(p): tuple(r) for p, r in found.get("adding_replicas", {}).items()},
            {int(p): tuple(r) for p, r in found.get("removing_replicas", {}).items()},
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(paths.topic(topic), error) from error


def encode_state(
    state: "PartitionState | LeaderAndIsr", controller_epoch: ControllerEpoch
) -> bytes:
    # Every start writes the state of every partition; this is ten times faster than json.dumps.
    isr = ",".join(map(str, state.isr))
    return (
        f'{{"controller_epoch":{controller_epoch},"leader":{state.leader},"version":1,'
        f'"leader_epoch":{state.leader_epoch},"isr":[{isr}]}}'
    ).encode()


class LeaderAndIsr(NamedTuple):
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]


def decode_state(topic: str, partition: int, value: bytes) -> LeaderAndIsr:
    found = _load(paths.state(topic, partition), value)
    try:
        return LeaderAndIsr(found["leader"], found["leader_epoch"], tuple(found["isr"]))
    except (KeyError, TypeError) as error:
        raise _unreadable(paths.state(topic, partition), error) from error


def encode_controller(broker_id: BrokerId, now: int) -> bytes:
    return _dump(
        {"version": 2, "brokerid": broker_id, "timestamp": str(now), "kraftControllerEpoch": -1}
    )


def decode_controller(value: bytes) -> BrokerId:
    found = _load(paths.CONTROLLER, value)
    try:
        return BrokerId(int(found["brokerid"]))
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(paths.CONTROLLER, error) from error


def encode_controller_epoch(controller_epoch: ControllerEpoch) -> bytes:
    return b"%d" % controller_epoch


def decode_controller_epoch(value: bytes) -> ControllerEpoch:
    try:
        return ControllerEpoch(int(value))
    except ValueError as error:
        raise _unreadable(paths.CONTROLLER_EPOCH, error) from error


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(value: bytes) -> str:
    found = _load(paths.CLUSTER_ID, value)
    try:
        return str(found["id"])
    except (KeyError, TypeError) as error:
        raise _unreadable(paths.CLUSTER_ID, error) from error


def encode_config(overrides: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(overrides)})


def decode_config(path: str, value: bytes) -> dict[str, str]:
    if not value:
        return {}
    try:
        return {str(name): str(setting) for name, setting in _load(path, value)["config"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def encode_config_change(kind: str, name: str) -> bytes:
    entity_path = paths.config(kind, name).removeprefix(f"{paths.CONFIG}/")
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, value: bytes) -> tuple[str, str]:
    """The kind and the name of the resource whose settings changed."""
    try:
        kind, _, node = _load(path, value)["entity_path"].partition("/")
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    return kind, paths.config_name(node)


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """The value of an ISR notice, and of a request for preferred leaders."""
    return _dump(
        {
            "version": 1,
            "partitions": [{"topic": topic, "partition": number} for topic, number in partitions],
        }
    )


def decode_partitions(path: str, value: bytes) -> list[TopicPartition]:
    try:
        return [
            TopicPartition(entry["topic"], entry["partition"])
            for entry in _load(path, value)["partitions"]
        ]
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def encode_log_dir_event(broker_id: BrokerId) -> bytes:
    """A log directory of this broker failed."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(path: str, value: bytes) -> BrokerId:
    try:
        return BrokerId(_load(path, value)["broker"])
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def encode_reassignment(targets: Mapping[TopicPartition, Sequence[BrokerId]]) -> bytes:
    return _dump(
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": partition, "replicas": list(replicas)}
                for (topic, partition), replicas in targets.items()
            ],
        }
    )


def decode_reassignment(value: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    try:
        return {
            TopicPartition(str(entry["topic"]), int(entry["partition"])): tuple(
                BrokerId(int(broker)) for broker in entry["replicas"]
            )
            for entry in _load(paths.REASSIGN_PARTITIONS, value)["partitions"]
        }
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(paths.REASSIGN_PARTITIONS, error) from error


class ProducerIdBlock(NamedTuple):
    broker_id: BrokerId
    first: int
    last: int  # inclusive, as in the tree


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    # Both ends are strings, as in Kafka: some readers parse JSON numbers as doubles.
    return _dump(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first),
            "block_end": str(block.last),
        }
    )


def decode_producer_id_block(value: bytes) -> ProducerIdBlock | None:
    """The last block that was assigned, or None if there was none."""
    if not value:
        return None
    found = _load(paths.PRODUCER_ID_BLOCK, value)
    try:
        return ProducerIdBlock(found["broker"], int(found["block_start"]), int(found["block_end"]))
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(paths.PRODUCER_ID_BLOCK, error) from error


def encode_feature(levels: Mapping[str, int]) -> bytes:
    return _dump({"features": dict(levels), "version": _FEATURE_VERSION, "status": 1})


def decode_feature(path: str, value: bytes) -> dict[str, int]:
    found = _load_up_to(_FEATURE_VERSION, path, value)
    try:
        return {str(name): int(level) for name, level in found["features"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def encode_topic_directories(topic: TopicDirectories) -> bytes:
    by_directory: dict[str, list[int]] = {}
    for partition, directory_id in topic.directories.items():
        by_directory.setdefault(directory_id, []).append(partition)
    return _dump(
        {
            "version": _DIRECTORIES_VERSION,
            "topic_id": id_to_text(topic.topic_id),
            "partitions": by_directory,
        }
    )


def decode_topic_directories(path: str, value: bytes) -> TopicDirectories:
    found = _load_up_to(_DIRECTORIES_VERSION, path, value)
    try:
        return TopicDirectories(
            TopicId(id_from_text(found["topic_id"])),
            {p: directory for directory, held in found["partitions"].items() for p in held},
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def encode_directories(by_id: Mapping[str, str]) -> bytes:
    return _dump({"version": _DIRECTORIES_VERSION, "directories": dict(by_id)})


def decode_directories(path: str, value: bytes) -> dict[str, str]:
    if not value:
        return {}
    found = _load_up_to(_DIRECTORIES_VERSION, path, value)
    try:
        return dict(found["directories"])
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(path, error) from error


# --- JSON


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(path: str, value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise _unreadable(path, error) from error


def _load_up_to(newest: int, path: str, value: bytes) -> Any:
    """Load a value whose higher versions mean something else."""
    found = _load(path, value)
    try:
        written = int(found["version"])
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(path, error) from error
    if written > newest:
        raise Corrupt(
            f"Node {path} of the cluster metadata has version {written}; this broker reads up to "
            f"{newest}. A newer Headrace wrote it: upgrade this broker"
        )
    return found


def _unreadable(path: str, error: Exception) -> Corrupt:
    return Corrupt(f"Cannot read node {path} of the cluster metadata: {error!r}")
