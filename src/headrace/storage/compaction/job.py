"""One compaction job, as the broker sends it to the child process."""

import json
from typing import NamedTuple

from headrace.core.cleaning import LastOfProducer, SegmentSummary


class Job(NamedTuple):
    directory: str
    segments: list[SegmentSummary]  # all of the log, the active one last
    first_dirty: int
    clean_end: int
    now: int
    segment_size_max: int
    index_size_max: int
    index_interval_size: int
    delete_retention_ms: int
    producers: dict[int, LastOfProducer]
    buffer_size: int  # log.cleaner.dedupe.buffer.size
    load_factor: float
    bytes_per_second: float

    def to_json(self) -> str:
        # JSON keys are always text, so the producers are sent as a list.
        fields = self._asdict() | {"producers": list(self.producers.items())}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Job":
        fields = json.loads(line)
        fields["segments"] = [SegmentSummary(*summary) for summary in fields["segments"]]
        fields["producers"] = {
            producer_id: LastOfProducer(*last) for producer_id, last in fields["producers"]
        }
        return cls(**fields)
