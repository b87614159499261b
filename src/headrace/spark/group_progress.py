"""Commits the progress of a stream to its consumer group, so that any tool can show its lag.

The checkpoint decides where a query continues; the group only shows its progress, so a commit
that fails is a warning. Each commit carries the ID of its query as metadata. Two queries with
one group overwrite each other's offsets: each finds the ID of the other and warns.
"""

import contextlib
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Mapping

from headrace.client.errors import ClientError, Refused
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.failures import refuse
from headrace.spark.offsets import Offsets
from headrace.wire import messages as m

log = logging.getLogger("headrace.spark")

# Newer versions name topics by ID.
_VERSION_MAX = 9
_COMMIT_AGAIN_AFTER_S = 0.5
_LOOK_FOR_OTHERS_EVERY_S = 10.0
_METADATA_PREFIX = "Spark query "


class GroupProgress:
    """The commits of one query. Spark pickles it with its reader, so it holds no connection."""

    def __init__(self) -> None:
        self._committed: Offsets | None = None
        self._commit_again_at = 0.0
        self._look_for_others_at = 0.0
        self._warned: set[str] = set()

    def commit(
        self,
        cluster: Cluster,
        group: str,
        query: str,
        offsets: Offsets,
        *,
        look_for_others: bool,
        within_s: float,
    ) -> None:
        """Commit unless these offsets are committed already; retry for ``within_s`` seconds."""
        if not offsets or offsets == self._committed:
            return
        if time.monotonic() < self._commit_again_at:
            return
        give_up_at = time.monotonic() + within_s
        while True:
            try:
                if look_for_others:
                    self._look_for_others(cluster, group, query, offsets)
                _commit(cluster, group, query, offsets)
            except ClientError as failed:
                hopeless = isinstance(failed, Refused) and not failed.retriable
                if hopeless or time.monotonic() >= give_up_at:
                    self._warn(
                        f"the query continues, but its progress could not be committed to group "
                        f"{group!r}, so the group does not show its lag: {failed}"
                    )
                    self._commit_again_at = time.monotonic() + _COMMIT_AGAIN_AFTER_S
                    if hopeless:
                        self._committed = offsets  # try again when the query has moved on
                    return
                cluster.forget()
                time.sleep(cluster.settings.retry_backoff_ms / 1000)
            else:
                self._committed = offsets
                return

    def _look_for_others(
        self, cluster: Cluster, group: str, query: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        if time.monotonic() < self._look_for_others_at:
            return
        self._look_for_others_at = time.monotonic() + _LOOK_FOR_OTHERS_EVERY_S
        # A failure here fails the commit too, which reports it.
        with contextlib.suppress(ClientError):
            for place, metadata in _metadata_of(cluster, group).items():
                other = metadata.removeprefix(_METADATA_PREFIX)
                if place in offsets and other != metadata and other.partition(" ")[0] != query:
                    self._warn(
                        f"Spark query {other} commits to consumer group {group!r} too, as does "
                        f"this query, {_name(query)}: they overwrite each other's progress. Give "
                        "each query its own kafka.group.id"
                    )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def _name(query: str) -> str:
    return f"{query} on {socket.gethostname()}"


def _commit(cluster: Cluster, group: str, query: str, offsets: Offsets) -> None:
    """Commit without being a member, as tools do; refused while the group has members."""
    partition_of = m.OffsetCommitRequest.OffsetCommitRequestPartition
    by_topic: dict[str, list[m.OffsetCommitRequest.OffsetCommitRequestPartition]]
    by_topic = defaultdict(list)
    metadata = _METADATA_PREFIX + _name(query)
    for place, offset in offsets.items():
        by_topic[place.topic].append(
            partition_of(
                partition_index=place.partition,
                committed_offset=offset,
                committed_metadata=metadata,
            )
        )
    request = m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )
    response = cluster.ask(
        cluster.group_coordinator(group),
        request,
        m.OffsetCommitResponse,
        version_max=_VERSION_MAX,
    )
    for topic in response.topics:
        for partition in topic.partitions:
            refuse(
                partition.error_code,
                f"group {group!r} on {topic.name}-{partition.partition_index}",
            )


def _metadata_of(cluster: Cluster, group: str) -> dict[TopicPartition, str]:
    """The metadata of every offset that the group has committed."""
    request = m.OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)],
    )
    response = cluster.ask(
        cluster.group_coordinator(group), request, m.OffsetFetchResponse, version_max=_VERSION_MAX
    )
    found = response.groups[0] if response.groups else response
    refuse(found.error_code, f"group {group!r}")
    return {
        TopicPartition(topic.name, partition.partition_index): partition.metadata or ""
        for topic in found.topics
        for partition in topic.partitions
    }
