"""The offset of a stream, as Spark writes it into the checkpoint before a batch runs.

    {"pages": {"0": 120, "1": 98},            the next offset of each partition, as in Spark's
                                              Kafka source
     "#headrace": {"query": "…",              the ID that this source gave the query
                   "group": "…",              the consumer group that progress is committed to
                   "ids": {"pages": "…"},     the IDs of the topics
                   "start": {…}}}             where the first batch began, in its end only

No topic name contains "#". A checkpoint without our part, as Spark's Kafka source writes it, is
read as well.

Why "start": Spark asks for the initial offset again if a query dies in its first batch, and
"latest" is another offset by then. The rows between would be lost, so the first batch takes its
start from its own end.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.model.ids import id_from_text, id_to_text
from headrace.spark.failures import PipelineError
from headrace.spark.offsets import Offsets, offsets_from_json, offsets_to_json

OURS = "#headrace"  # the key of our part


class StreamOffset(NamedTuple):
    """Spark's offset dict, parsed."""

    offsets: Offsets
    query: str = ""
    group: str = ""
    topic_ids: Mapping[str, bytes] = {}
    start: Offsets | None = None

    @property
    def is_initial(self) -> bool:
        """True before the end of the first batch that has rows."""
        return self.start == self.offsets

    def to_json(self) -> dict[str, Any]:
        ours: dict[str, Any] = {
            "query": self.query,
            "group": self.group,
            "ids": {name: id_to_text(raw) for name, raw in sorted(self.topic_ids.items())},
        }
        if self.start is not None:
            ours["start"] = offsets_to_json(self.start)
        return {**offsets_to_json(self.offsets), OURS: ours}


def parse_offset(json: Mapping[str, Any]) -> StreamOffset:
    try:
        ours = json.get(OURS, {})
        start = ours.get("start")
        return StreamOffset(
            offsets_from_json({name: entry for name, entry in json.items() if name != OURS}),
            ours.get("query", ""),
            ours.get("group", ""),
            {name: id_from_text(text) for name, text in ours.get("ids", {}).items()},
            None if start is None else offsets_from_json(start),
        )
    except (ValueError, TypeError, AttributeError) as broken:
        raise PipelineError(
            'the checkpoint must hold offsets like {"topicA":{"0":23}} for this source, not '
            f"{str(json)[:1000]} ({broken})"
        ) from broken
