"""Turn a standalone node into a member of a cluster on ZooKeeper, while it does not run.

Its topics, settings, leader epochs, producer ids, feature levels and directory assignment are
copied to ZooKeeper (``coordination.migration``). Then meta.properties gets the form of Kafka on
ZooKeeper, and the file of the standalone node's tree is renamed, so that a broker starts with
``zookeeper.connect``. Until the last rename the command can be repeated.
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.broker import owner_of
from headrace.coordination.embedded import FILE_NAME, EmbeddedTree
from headrace.coordination.migration import Migrated, migrate
from headrace.coordination.zookeeper import ZooKeeperTree
from headrace.model.config import BrokerConfig, topic_config
from headrace.model.errors import ConfigError, Corrupt
from headrace.model.ids import LeaderEpoch, TopicPartition
from headrace.storage import checkpoint, directory_names
from headrace.storage.log_manager import LogManager

if TYPE_CHECKING:
    from headrace.storage.log_directory import LogDirectory
    from headrace.world.world import World

MIGRATED_NAME = f"{FILE_NAME}.migrated"


async def migrate_node(config: BrokerConfig, world: "World") -> Migrated:
    """Carry the node with these settings over. Raises ConfigError with what to do."""
    if not config.is_on_zookeeper:
        raise ConfigError(
            "zookeeper.connect is not set. Set it, in the file or with -X, to the ZooKeeper of the "
            "cluster"
        )
    paths = [Path(path) for path in config.list("log.dirs")]
    node_id = config.node_id if config.node_id_is_given else owner_of(world.files, paths)
    plain = topic_config(config, {})
    logs = LogManager(
        paths,
        world=world,
        node_id=config.node_id if node_id is None else node_id,
        config_of=lambda topic: plain,
    )
    logs.directories.lock()
    try:
        directory = logs.directories.place_of(FILE_NAME)
        if not world.files.exists(directory / FILE_NAME):
            raise ConfigError(
                f"no data of a standalone node ({FILE_NAME}) in {', '.join(map(str, paths))}. "
                "Name its data directory with --data or log.dirs"
            )
        migrated = await _copy(config, directory, _last_epochs(logs), world)
        for each in logs.directories:
            if each.offline is None:
                _convert_properties(each, logs.directories.node_id)
        world.files.rename(directory / FILE_NAME, directory / MIGRATED_NAME)
        world.files.sync_directory(directory)
        for note in logs.directories.traces_of(FILE_NAME):
            world.files.unlink(note)
    finally:
        logs.abandon()
    return migrated


async def _copy(
    config: BrokerConfig,
    directory: Path,
    last_epochs: dict[TopicPartition, LeaderEpoch],
    world: "World",
) -> Migrated:
    timeout_ms = config.int("zookeeper.session.timeout.ms")
    target = await ZooKeeperTree.open(
        config.str("zookeeper.connect"),
        session_timeout_ms=timeout_ms,
        connection_timeout_ms=config.optional_int("zookeeper.connection.timeout.ms") or timeout_ms,
    )
    try:
        source = await EmbeddedTree.open(directory, world.now)
        try:
            return await migrate(source, target, last_epochs)
        finally:
            await source.close()
    finally:
        await target.close()


def _last_epochs(logs: LogManager) -> dict[TopicPartition, LeaderEpoch]:
    """The last leader epoch in each log, without opening the logs."""
    found: dict[TopicPartition, LeaderEpoch] = {}
    for directory in logs.directories:
        if directory.offline is not None:
            continue
        for name in directory.files.directories_in(directory.path):
            topic_partition = directory_names.parse(name)
            if topic_partition is not None:
                path = directory.path / name / checkpoint.LEADER_EPOCHS
                with suppress(Corrupt):  # the start recovers it from the log
                    epochs = checkpoint.read_leader_epochs(directory.files, path)
                    found[topic_partition] = epochs.latest
    return found


def _convert_properties(directory: "LogDirectory", node_id: int) -> None:
    path = directory.path / checkpoint.META_PROPERTIES
    values = checkpoint.read_properties(directory.files, path) or {}
    values.pop("node.id", None)
    values |= {"version": "0", "broker.id": str(node_id)}
    checkpoint.write_properties(directory.files, path, values)
