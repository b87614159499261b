"""The batch that Spark is planning, read from the checkpoint of its query.

Spark tells a Python source neither the number of a batch nor its watermark and its time, but writes
them to the offset log before it asks the source for the partitions of the batch. A batch that runs
again has the same entry, so they stay the same.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from headrace.spark.failures import PipelineError

# The last batch may run again after a newer one was planned, and failed to be.
_LOOK_BACK = 2


class PlannedBatch(NamedTuple):
    number: int
    watermark_ms: int  # 0: none yet
    planned_at_ms: int


def planned_batch(checkpoint: str, end: dict[str, Any]) -> PlannedBatch:
    """The entry of the offset log that ends here. Raises PipelineError without one."""
    directory = Path(checkpoint.removeprefix("file://")) / "offsets"
    numbers = (
        sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())
        if directory.is_dir()
        else []
    )
    for number in reversed(numbers[-_LOOK_BACK:]):
        _, metadata, offsets = (directory / str(number)).read_text().splitlines()[:3]
        if json.loads(offsets) == end:
            found = json.loads(metadata)
            watermark_ms, planned_at_ms = found["batchWatermarkMs"], found["batchTimestampMs"]
            return PlannedBatch(number, int(watermark_ms), int(planned_at_ms))
    raise PipelineError(
        f"query.checkpoint is {checkpoint!r}, whose offset log does not have the batch that Spark "
        "plans; give the checkpoint of this query"
    )
