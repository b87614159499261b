"""The settings of a run: where warehouse and state are, which cluster, where new queries start."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.pipeline.events import RAW
from headrace.pipeline.warehouse.batch import Numbered
from headrace.pipeline.warehouse.storage import Location, location_of

DEFAULT_WAREHOUSE = Path("warehouse")
PIPELINES = "_pipelines"  # below it: a directory per pipeline
# Records of one batch. A first run over full topics would otherwise be a single batch of any size.
BATCH_RECORDS_MAX = 2_000_000
# Of the records of a topic, and of the rows of a function with rules. A broken producer must not
# drain a topic into quarantine.
BAD_SHARE_MAX = 0.05


class RunSettings(NamedTuple):
    warehouse: Path | Location
    source: Mapping[str, str]  # options of the Spark source: kafka.*, librdkafka.*
    once: bool = False  # end when all that the topics hold now is processed
    start: Mapping[str, str] | None = None  # where queries start over; None: where they stopped
    reset: bool = False  # delete tables and checkpoints first
    batch_records_max: int = BATCH_RECORDS_MAX
    bad_share_max: float = BAD_SHARE_MAX
    retry_partitions: int = 1  # of the topic of retries
    record_sizes: Mapping[str, int] = {}  # max.message.bytes of the topics that are written
    state_directory: Path | None = None  # None: in the warehouse, which is a directory then
    claim: Numbered | None = None  # of this run, if its state is not in the warehouse

    def table(self, name: str) -> Location:
        return location_of(self.warehouse) / name

    def raw_table(self, topic: str) -> Location:
        return self.table(RAW) / topic

    def state(self, pipeline: str) -> Path:
        """The directory of a pipeline's state."""
        if self.state_directory is not None:
            return self.state_directory / pipeline
        assert location_of(self.warehouse).is_directory, "a URL needs a state directory"
        return Path(self.table(PIPELINES), pipeline)
