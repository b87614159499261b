"""The small text files beside the logs and their formats.

    recovery-point-offset-checkpoint   version 0, a count, then ``topic partition offset``
    replication-offset-checkpoint      the same (high watermarks)
    log-start-offset-checkpoint        the same
    cleaner-offset-checkpoint          the same
    leader-epoch-checkpoint            version 0, a count, then ``leader-epoch start-offset``
    partition.metadata                 ``version: 0`` and ``topic_id: base64``
    future-directories                 ids of log directories with unfinished copies of this log
    meta.properties                    the owner of the log directory
    .kafka_cleanshutdown               present after a clean shutdown
    headrace-boot-id                   the boot of the machine up to which losses are reported

All are replaced atomically, so a reader sees the old content or the new.
"""

import json
from collections.abc import Iterable, Mapping

from headrace.core.leader_epochs import EpochEntry, LeaderEpochs
from headrace.model.errors import Corrupt
from headrace.model.ids import (
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    id_from_text,
    id_to_text,
)
from headrace.storage.files import read_file, unlink_if_exists, write_atomically
from headrace.world.files import StrPath, SystemFiles

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_ID = "headrace-boot-id"
FUTURE_DIRECTORIES = "future-directories"
ZOOKEEPER_SESSION = "zookeeper-session"  # only a member of a cluster has it


def read_offsets(files: SystemFiles, path: StrPath) -> dict[TopicPartition, Offset]:
    """The offsets in a checkpoint; none if the file is missing, or empty as Kafka creates it."""
    offsets = {}
    for line in _entries(files, path):
        # A topic name contains no blank.
        words = line.split()
        if len(words) != 3:
            raise Corrupt(f"{path}: expected 'topic partition offset', found {line!r}")
        try:
            offsets[TopicPartition(words[0], int(words[1]))] = Offset(int(words[2]))
        except ValueError:
            raise Corrupt(f"{path}: expected 'topic partition offset', found {line!r}") from None
    return offsets


def write_offsets(
    files: SystemFiles,
    path: StrPath,
    offsets: Mapping[TopicPartition, Offset],
    *,
    sync: bool = True,
) -> None:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    write_atomically(files, path, _document(lines), sync=sync)


def read_leader_epochs(files: SystemFiles, path: StrPath) -> LeaderEpochs:
    entries = []
    for line in _entries(files, path):
        try:
            leader_epoch, start_offset = map(int, line.split())
        except ValueError:
            raise Corrupt(f"{path}: expected 'leader-epoch offset', found {line!r}") from None
        entries.append(EpochEntry(LeaderEpoch(leader_epoch), Offset(start_offset)))
    return LeaderEpochs(entries)


def write_leader_epochs(
    files: SystemFiles, path: StrPath, entries: Iterable[EpochEntry], *, sync: bool
) -> None:
    lines = [f"{leader_epoch} {start_offset}" for leader_epoch, start_offset in entries]
    write_atomically(files, path, _document(lines), sync=sync)


def read_topic_id(files: SystemFiles, path: StrPath) -> TopicId | None:
    """The topic id; None if there is none, or if a power failure took it: it is not fsynced."""
    text = _text(files, path)
    if text is None or not text.strip("\0"):
        return None
    pairs = (line.partition(":") for line in text.splitlines())
    values = {key.strip(): value.strip() for key, _, value in pairs}
    if values.get("version", "0") != "0":
        raise Corrupt(f"{path}: version {values['version']!r}; only 0 is supported")
    if "topic_id" not in values:
        raise Corrupt(f"{path}: no line 'topic_id: …'")
    try:
        return TopicId(id_from_text(values["topic_id"]))
    except ValueError as error:
        raise Corrupt(f"{path}: {error}") from None


def write_topic_id(files: SystemFiles, path: StrPath, topic_id: TopicId, *, sync: bool) -> None:
    text = f"version: 0\ntopic_id: {id_to_text(topic_id)}"
    write_atomically(files, path, text.encode(), sync=sync)


def read_future_directories(files: SystemFiles, path: StrPath) -> list[str]:
    """Ids of the log directories with copies of this log, which a move has not finished."""
    try:
        return (_text(files, path) or "").split()
    except Corrupt:
        return []  # a damaged note must not make the partition unavailable


def write_future_directories(
    files: SystemFiles, path: StrPath, directory_ids: Iterable[str], *, sync: bool
) -> None:
    content = "".join(f"{directory_id}\n" for directory_id in directory_ids).encode()
    if content:
        write_atomically(files, path, content, sync=sync)
    else:
        unlink_if_exists(files, path)


def read_properties(files: SystemFiles, path: StrPath) -> dict[str, str] | None:
    """Read a ``key=value`` file; None if it is missing."""
    text = _text(files, path)
    if text is None:
        return None
    values = {}
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    return values


def write_properties(files: SystemFiles, path: StrPath, values: Mapping[str, str]) -> None:
    lines = ["#", *(f"{key}={value}" for key, value in values.items()), ""]
    write_atomically(files, path, "\n".join(lines).encode())


def read_boot_id(files: SystemFiles, path: StrPath) -> str | None:
    try:
        return (_text(files, path) or "").strip() or None
    except Corrupt:
        return None


def write_boot_id(files: SystemFiles, path: StrPath, boot_id: str) -> None:
    write_atomically(files, path, f"{boot_id}\n".encode())


def write_clean_shutdown(files: SystemFiles, path: StrPath, broker_epoch: int) -> None:
    marker = {"version": 0, "brokerEpoch": broker_epoch}
    write_atomically(files, path, json.dumps(marker, separators=(",", ":")).encode())


def read_clean_shutdown(files: SystemFiles, path: StrPath) -> int | None:
    """The broker epoch of the clean shutdown, -1 if unknown; None if there was none."""
    try:
        return int(json.loads(read_file(files, path))["brokerEpoch"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1  # before Kafka 3.7 the file was empty


def _document(lines: list[str]) -> bytes:
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def _text(files: SystemFiles, path: StrPath) -> str | None:
    """None if the file is missing."""
    try:
        return read_file(files, path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Corrupt(f"{path}: not a text file") from None


def _entries(files: SystemFiles, path: StrPath) -> list[str]:
    lines = (_text(files, path) or "").splitlines()
    if not lines:
        return []
    if lines[0].strip() != "0":
        raise Corrupt(f"{path}: version {lines[0]!r}; only 0 is supported")
    if len(lines) < 2 or not lines[1].strip().isdigit():
        raise Corrupt(f"{path}: the number of entries is missing")
    entries = [line for line in lines[2:] if line.strip()]
    if len(entries) != int(lines[1]):
        raise Corrupt(f"{path}: found {len(entries)} entries, expected {lines[1]}")
    return entries
