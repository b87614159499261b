"""Publishes what a load commits to its table, and what it lost, for the audit.

Before the commit, as dead letters: a load that is killed between the two loads the offsets again,
and publishes them again. The audit counts each offset once, however often it was published.
"""

import logging
from collections.abc import Iterable

from headrace.client.errors import ClientError, Refused
from headrace.model.audit import AUDIT_TOPIC, AUDIT_TOPIC_CONFIGS, LoadMessage, ReadRange
from headrace.model.errors import ErrorCode
from headrace.model.ids import id_to_text
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.storage import Location
from headrace.spark.cluster import Cluster
from headrace.spark.read_counts import publish

log = logging.getLogger("headrace.pipeline")

_FORBIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class LoadCounts:
    """The counts of one load. One that may only read its topics loads without them."""

    def __init__(self, cluster: Cluster, table: Location) -> None:
        self._cluster = cluster
        self._table = str(table)
        self._has_topic = False
        self._is_forbidden = False

    def publish(self, ranges: Iterable[ReadRange], *, is_lost: bool = False) -> None:
        """Wait until the brokers have the counts."""
        if self._is_forbidden:
            return
        try:
            if not self._has_topic:
                self._cluster.create_topic(AUDIT_TOPIC, 1, AUDIT_TOPIC_CONFIGS)
                self._has_topic = True
            publish(self._cluster, ranges, lambda some: LoadMessage(self._table, some, is_lost))
        except ClientError as failed:
            refused = failed if isinstance(failed, Refused) else failed.__cause__
            if not isinstance(refused, Refused) or refused.code not in _FORBIDDEN:
                raise
            self._is_forbidden = True
            log.warning("Loading without counts for the audit: %s", failed)

    def publish_lost(self, span: Span) -> None:
        (topic, partition), topic_id = span.place, id_to_text(span.topic_id)
        range_ = ReadRange(topic, topic_id, partition, span.first_offset, span.offset_end, {})
        self.publish([range_], is_lost=True)
