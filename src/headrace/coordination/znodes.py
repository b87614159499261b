"""Where things lie in the tree and how they are written: Kafka 3.9's paths and JSON.

Pure. Reading forgives what it does not know (a newer writer's extra keys) and raises
``Corrupt`` for what it needs and cannot find; writing gives the bytes that Kafka gives.
This is also the only place where the controller's changes become guarded writes.

    /brokers/ids/0                          a live broker, ephemeral
    /brokers/topics/T                       replicas of every partition, topic id
    /brokers/topics/T/partitions/N/state    leader and ISR; its version is the partition epoch
    /controller, /controller_epoch          who rules, and the count of reigns that fences
    /cluster/id
    /config/topics|brokers|clients|users|ips/X, /config/changes
    /admin/delete_topics, /admin/reassign_partitions, /admin/preferred_replica_election
    /isr_change_notification, /log_dir_event_notification
    /latest_producer_id_block
    /feature

What Kafka on ZooKeeper does not keep is under a root of our own, one node per broker:

    /headrace/directory_assignment/0        paths of its log directories, by directory.id
    /headrace/directory_assignment/0/T      the directory of each partition of T
    /headrace/pending_deletions/0/ID        a deleted topic whose files are in offline directories
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from headrace.coordination.tree import ANY_VERSION, Check, Create, Delete, Operation, Set
from headrace.core.controller import (
    UNBORN,
    AddPartitions,
    Change,
    ChangePartition,
    CreateTopic,
    DeleteTopic,
    MarkForDeletion,
)
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
    ZkVersion,
    id_from_text,
    id_to_text,
)

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
DIRECTORY_ASSIGNMENT = "/headrace/directory_assignment"
PENDING_DELETIONS = "/headrace/pending_deletions"

# In Kafka's tree from the first start on. Parents first.
PERSISTENT = (
    "/brokers",
    BROKER_IDS,
    BROKER_TOPICS,
    "/brokers/seqid",
    "/cluster",
    "/config",
    "/config/topics",
    "/config/brokers",
    "/config/clients",
    "/config/users",
    "/config/ips",
    # The next two are Kafka 4's kinds of settings, which 3.9 kept nowhere.
    "/config/groups",
    "/config/client-metrics",
    CONFIG_CHANGES,
    "/admin",
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    "/consumers",
    "/headrace",
    DIRECTORY_ASSIGNMENT,
    PENDING_DELETIONS,
)


def broker_path(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}"


def partition_path(topic: str, partition: int) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}/state"


def config_path(kind: str, name: str) -> str:
    """``kind`` is a folder of /config; brokers have one named ``<default>`` for all of them."""
    return f"/config/{kind}/{name}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


# --- values


def broker_value(entry: BrokerEntry, now: int) -> bytes:
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
    value |= {"jmx_port": -1, "port": first.port, "host": first.host}
    return _dump(value | {"version": 5, "timestamp": str(now)})


def read_broker(broker_id: BrokerId, value: bytes, created_zxid: int) -> BrokerEntry:
    found = _load(broker_path(broker_id), value)
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
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(broker_path(broker_id), error) from error
    return BrokerEntry(broker_id, endpoints, found.get("rack"), created_zxid, features)


def topic_value(topic: TopicState) -> bytes:
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
    """What a topic's node says: replicas by partition, and those that come and go."""

    topic_id: TopicId | None  # None before Kafka 2.8, which had no ids
    replicas: Sequence[tuple[BrokerId, ...]]
    adding: Mapping[int, tuple[BrokerId, ...]]
    removing: Mapping[int, tuple[BrokerId, ...]]


def read_topic(topic: str, value: bytes) -> Assignment:
    found = _load(topic_path(topic), value)
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
        raise _unreadable(topic_path(topic), error) from error


def state_value(state: PartitionState, controller_epoch: ControllerEpoch) -> bytes:
    # Written for every partition at every start, so by hand: a tenth of the encoder's time.
    isr = ",".join(map(str, state.isr))
    return (
        f'{{"controller_epoch":{controller_epoch},"leader":{state.leader},"version":1,'
        f'"leader_epoch":{state.leader_epoch},"isr":[{isr}]}}'
    ).encode()


class LeaderAndIsr(NamedTuple):
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]


def read_state(topic: str, partition: int, value: bytes) -> LeaderAndIsr:
    found = _load(state_path(topic, partition), value)
    try:
        return LeaderAndIsr(found["leader"], found["leader_epoch"], tuple(found["isr"]))
    except (KeyError, TypeError) as error:
        raise _unreadable(state_path(topic, partition), error) from error


def controller_value(broker_id: BrokerId, now: int) -> bytes:
    return _dump(
        {"version": 2, "brokerid": broker_id, "timestamp": str(now), "kraftControllerEpoch": -1}
    )


def read_controller(value: bytes) -> BrokerId:
    found = _load(CONTROLLER, value)
    try:
        return BrokerId(int(found["brokerid"]))
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(CONTROLLER, error) from error


def controller_epoch_value(controller_epoch: ControllerEpoch) -> bytes:
    return b"%d" % controller_epoch


def read_controller_epoch(value: bytes) -> ControllerEpoch:
    try:
        return ControllerEpoch(int(value))
    except ValueError as error:
        raise _unreadable(CONTROLLER_EPOCH, error) from error


def cluster_id_value(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def read_cluster_id(value: bytes) -> str:
    found = _load(CLUSTER_ID, value)
    try:
        return str(found["id"])
    except (KeyError, TypeError) as error:
        raise _unreadable(CLUSTER_ID, error) from error


def config_value(overrides: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(overrides)})


def read_config(path: str, value: bytes) -> dict[str, str]:
    if not value:
        return {}
    try:
        return {str(name): str(setting) for name, setting in _load(path, value)["config"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def config_change(kind: str, name: str) -> Create:
    """The notice that wakes the other brokers after a change of settings."""
    return Create(
        f"{CONFIG_CHANGES}/config_change_",
        _dump({"version": 2, "entity_path": f"{kind}/{name}"}),
        sequential=True,
    )


def read_config_change(path: str, value: bytes) -> tuple[str, str]:
    """The kind and the name of what changed."""
    try:
        kind, _, name = _load(path, value)["entity_path"].partition("/")
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    return kind, name


def isr_change(changed: Iterable[TopicPartition]) -> Create:
    """The notice by which a leader tells the controller that it changed an ISR."""
    return Create(f"{ISR_CHANGES}/isr_change_", _partitions_value(changed), sequential=True)


def preferred_election_value(wanted: Iterable[TopicPartition]) -> bytes:
    return _partitions_value(wanted)


def read_partitions(path: str, value: bytes) -> list[TopicPartition]:
    """The partitions that an ISR notice or a request for an election names."""
    try:
        return [
            TopicPartition(entry["topic"], entry["partition"])
            for entry in _load(path, value)["partitions"]
        ]
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def log_dir_event(broker_id: BrokerId) -> Create:
    """The notice by which a broker tells the controller that a log directory failed."""
    return Create(
        f"{LOG_DIR_EVENTS}/log_dir_event_",
        _dump({"version": 1, "broker": broker_id, "event": 1}),
        sequential=True,
    )


def read_log_dir_event(path: str, value: bytes) -> BrokerId:
    try:
        return BrokerId(_load(path, value)["broker"])
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def reassignment_value(wanted: Mapping[TopicPartition, Sequence[BrokerId]]) -> bytes:
    return _dump(
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": partition, "replicas": list(replicas)}
                for (topic, partition), replicas in wanted.items()
            ],
        }
    )


def read_reassignment(value: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    try:
        return {
            TopicPartition(entry["topic"], entry["partition"]): tuple(entry["replicas"])
            for entry in _load(REASSIGN_PARTITIONS, value)["partitions"]
        }
    except (KeyError, TypeError) as error:
        raise _unreadable(REASSIGN_PARTITIONS, error) from error


class ProducerIdBlock(NamedTuple):
    broker_id: BrokerId
    first: int
    last: int  # inclusive, as in the tree


def producer_id_block_value(block: ProducerIdBlock) -> bytes:
    # Both ends as text: JSON's numbers are doubles to some readers.
    return _dump(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first),
            "block_end": str(block.last),
        }
    )


def read_producer_id_block(value: bytes) -> ProducerIdBlock | None:
    """The block last handed out, or None before the first."""
    if not value:
        return None
    found = _load(PRODUCER_ID_BLOCK, value)
    try:
        return ProducerIdBlock(found["broker"], int(found["block_start"]), int(found["block_end"]))
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(PRODUCER_ID_BLOCK, error) from error


def feature_value(levels: Mapping[str, int]) -> bytes:
    return _dump({"features": dict(levels), "version": 2, "status": 1})


def read_feature(value: bytes) -> dict[str, int]:
    try:
        return {str(name): int(level) for name, level in _load(FEATURE, value)["features"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(FEATURE, error) from error


def topic_directories_value(homes: TopicDirectories) -> bytes:
    by_directory: dict[str, list[int]] = {}
    for partition, directory_id in homes.directories.items():
        by_directory.setdefault(directory_id, []).append(partition)
    return _dump({"version": 1, "topic_id": id_to_text(homes.topic_id), "partitions": by_directory})


def read_topic_directories(path: str, value: bytes) -> TopicDirectories:
    found = _load(path, value)
    try:
        return TopicDirectories(
            TopicId(id_from_text(found["topic_id"])),
            {p: directory for directory, held in found["partitions"].items() for p in held},
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def directories_value(paths: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "directories": dict(paths)})


def read_directories(path: str, value: bytes) -> dict[str, str]:
    try:
        return dict(_load(path, value)["directories"]) if value else {}
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable(path, error) from error


# --- the controller's changes as guarded writes


def operations(
    changes: Iterable[Change],
    controller_epoch: ControllerEpoch,
    controller_epoch_zk_version: ZkVersion,
) -> list[Operation]:
    """The one ``multi`` that carries out ``changes``, or does nothing if this reign is over.

    Nodes that only a controller writes need no version of their own: the check
    of the controller epoch is their guard. A partition's state has two writers,
    the controller and its leader, so it is guarded by its own version as well.
    """
    wanted: list[Operation] = [Check(CONTROLLER_EPOCH, controller_epoch_zk_version)]
    for change in changes:
        match change:
            case CreateTopic(topic, overrides):
                wanted.append(Create(config_path("topics", topic.name), config_value(overrides)))
                wanted.append(Create(topic_path(topic.name), topic_value(topic)))
                wanted.append(Create(f"{topic_path(topic.name)}/partitions"))
                wanted += _birth(topic.partitions, controller_epoch)
            case AddPartitions(topic, added):
                wanted.append(Set(topic_path(topic.name), topic_value(topic), ANY_VERSION))
                wanted += _birth(added, controller_epoch)
            case ChangePartition(state, expected):
                value = state_value(state, controller_epoch)
                path = state_path(state.topic, state.partition)
                if expected == UNBORN:
                    wanted.append(Create(path, value))
                else:
                    wanted.append(Set(path, value, ZkVersion(expected)))
            case MarkForDeletion(name):
                wanted.append(Create(delete_topic_path(name)))
            case DeleteTopic(topic):
                for partition in range(len(topic.partitions)):
                    wanted.append(Delete(state_path(topic.name, partition), ANY_VERSION))
                    wanted.append(Delete(partition_path(topic.name, partition), ANY_VERSION))
                wanted.append(Delete(f"{topic_path(topic.name)}/partitions", ANY_VERSION))
                wanted.append(Delete(topic_path(topic.name), ANY_VERSION))
                wanted.append(Delete(config_path("topics", topic.name), ANY_VERSION))
                wanted.append(Delete(delete_topic_path(topic.name), ANY_VERSION))
            case _:
                assert_never(change)
    return wanted


def _birth(
    states: Iterable[PartitionState], controller_epoch: ControllerEpoch
) -> Iterable[Operation]:
    for state in states:
        yield Create(partition_path(state.topic, state.partition))
        yield Create(state_path(state.topic, state.partition), state_value(state, controller_epoch))


# --- JSON


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(path: str, value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise _unreadable(path, error) from error


def _partitions_value(partitions: Iterable[TopicPartition]) -> bytes:
    return _dump(
        {
            "version": 1,
            "partitions": [{"topic": topic, "partition": number} for topic, number in partitions],
        }
    )


def _unreadable(path: str, error: Exception) -> Corrupt:
    return Corrupt(f"node {path} of the coordination tree cannot be read: {error!r}")
