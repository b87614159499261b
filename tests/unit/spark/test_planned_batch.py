"""The entry of the offset log that Spark plans."""

import json

import pytest

from headrace.spark.failures import PipelineError
from headrace.spark.planned_batch import PlannedBatch, planned_batch


def entry(path, number, watermark_ms, end):
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": watermark_ms + 1, "conf": {}}
    (path / "offsets").mkdir(exist_ok=True)
    text = "\n".join(("v1", json.dumps(metadata), json.dumps(end)))
    (path / "offsets" / str(number)).write_text(text)


def test_a_batch_is_found_by_its_end(tmp_path):
    for number in range(12):
        entry(tmp_path, number, number * 1000, {"t": {"0": number}})
    (tmp_path / "offsets" / ".11.crc").write_text("")
    for url in (str(tmp_path), f"file://{tmp_path}"):
        assert planned_batch(url, {"t": {"0": 11}}) == PlannedBatch(11, 11_000, 11_001)
    assert planned_batch(str(tmp_path), {"t": {"0": 10}}) == PlannedBatch(10, 10_000, 10_001)


def test_another_checkpoint_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="give the checkpoint of this query"):
        planned_batch(str(tmp_path), {"t": {"0": 1}})
    entry(tmp_path, 0, 0, {"t": {"0": 2}})
    with pytest.raises(PipelineError, match="give the checkpoint of this query"):
        planned_batch(str(tmp_path), {"t": {"0": 1}})
