"""Opening the log of one partition directory."""

import logging
from collections.abc import Collection
from pathlib import Path

from headrace.core.leader_epochs import LeaderEpochs
from headrace.core.producer_state import Producers
from headrace.model.config import TopicConfig
from headrace.model.errors import Corrupt
from headrace.model.ids import NO_TOPIC_ID, Millis, Offset, TopicId, TopicPartition
from headrace.storage import checkpoint, recovery
from headrace.storage.log import Log, preallocated_size
from headrace.storage.log_directory import LogDirectory
from headrace.world.files import SystemFiles

_log = logging.getLogger("headrace.storage")


def load_log(
    directory: LogDirectory,
    path: Path,
    topic_partition: TopicPartition,
    config: TopicConfig,
    now: Millis,
    *,
    topic_id: TopicId = NO_TOPIC_ID,
    is_new: bool = False,
    producer_expiration_ms: int = 86_400_000,
) -> Log:
    """Open a partition directory; recover it after an unclean shutdown.

    ``is_new``: the caller has just created the directory, so it is empty.
    """
    files = directory.files
    log_start = directory.offsets.log_start(topic_partition) or Offset(0)
    recovery_point = directory.offsets.recovery_point(topic_partition)
    producers = Producers(producer_expiration_ms)
    listing = recovery.Listing.empty() if is_new else recovery.list_directory(files, str(path))
    known_id, epochs = _read_small_files(files, path, listing.names)
    epochs_are_damaged = epochs is None
    epochs = epochs or LeaderEpochs()
    loaded = recovery.load(
        str(path),
        listing,
        log_start=log_start,
        recovery_point=Offset(0) if epochs_are_damaged else recovery_point,
        clean=directory.clean_start and not epochs_are_damaged,
        now=now,
        resources=directory.resources,
        producers=producers,
        epochs=epochs,
        index_interval_size=config.index_interval_bytes,
        preallocated_size=preallocated_size(config),
        contiguous_from=_contiguous_from(directory, topic_partition, config),
    )
    if directory.clean_start and loaded.recovered_size == 0:
        recovery_point = loaded.log_end
    if known_id is None and topic_id != NO_TOPIC_ID:
        known_id = topic_id
        checkpoint.write_topic_id(files, path / checkpoint.PARTITION_METADATA, known_id, sync=False)
    opened = Log(
        directory,
        path,
        topic_partition,
        known_id or NO_TOPIC_ID,
        config,
        log_start=log_start,
        recovery_point=recovery_point,
        producers=producers,
        epochs=epochs,
        loaded=loaded,
        now=now,
    )
    # Without a recovery point, no earlier process is known to have flushed the log.
    if directory.offsets.recovery_point(topic_partition) == 0:
        opened.flusher.created()
    if (note := checkpoint.FUTURE_DIRECTORIES) in listing.names:
        opened.copies.noted(checkpoint.read_future_directories(files, path / note))
    if not listing.log_sizes and checkpoint.LEADER_EPOCHS in listing.names:
        opened.save_leader_epochs()
    if loaded.recovered_size:
        _log.info(
            "%s: checked %d bytes after an unclean shutdown; log end offset %d",
            topic_partition,
            loaded.recovered_size,
            loaded.log_end,
        )
    return opened


def _contiguous_from(
    directory: LogDirectory, topic_partition: TopicPartition, config: TopicConfig
) -> Offset | None:
    """From where on a gap between segments is no work of the cleaner; see ``recovery.load``.

    Our cleaner stays below the recovery point on disk. Kafka's does not, and its followers leave
    gaps where they begin segments. So look at gaps in a compacted log only if they can be losses:
    if the machine went down, and a Headrace broker was there before.
    """
    offsets = directory.offsets
    if offsets.cleaned_end(topic_partition) is None and "compact" not in config.cleanup_policy:
        return Offset(0)
    if directory.machine_went_down and offsets.knows_recovery_points:
        return offsets.recovery_point(topic_partition)
    return None


def _read_small_files(
    files: SystemFiles, path: Path, names: Collection[str]
) -> tuple[TopicId | None, LeaderEpochs | None]:
    """Topic id, None if absent; leader epochs, None if damaged."""
    topic_id = None
    if checkpoint.PARTITION_METADATA in names:
        topic_id = checkpoint.read_topic_id(files, f"{path}/{checkpoint.PARTITION_METADATA}")
    if checkpoint.LEADER_EPOCHS not in names:
        return topic_id, LeaderEpochs()
    epochs_path = f"{path}/{checkpoint.LEADER_EPOCHS}"
    try:
        epochs = checkpoint.read_leader_epochs(files, epochs_path)
        if not epochs.entries and not files.stat(epochs_path).size:
            # It was replaced without an fsync, and a power failure took its content.
            raise Corrupt(f"{epochs_path} is empty")
        return topic_id, epochs
    except Corrupt as problem:
        _log.warning("%s. Rebuilding the leader epochs from the batches", problem)
        return topic_id, None
