"""The directory of a pipeline: lock, recorded state, IDs, pinned versions, stop flag."""

import os

import pytest

from headrace.pipeline.errors import RunRefused
from headrace.pipeline.runner.directory import PipelineDirectory


@pytest.fixture
def directory(tmp_path):
    return PipelineDirectory(tmp_path / "_pipelines" / "site")


def test_one_run_at_a_time(directory):
    assert not directory.is_running()
    with directory.locked():
        assert directory.is_running()
        with (
            pytest.raises(RunRefused, match=f"process {os.getpid()} runs the pipeline site"),
            directory.locked(),
        ):
            pass
    assert not directory.is_running()
    with directory.locked():
        pass


def test_what_is_recorded(directory):
    assert directory.recorded() is None
    with directory.locked():
        directory.record({"table": {}}, {"10s": "id"})
    assert directory.recorded() == {"declaration": {"table": {}}, "queries": {"10s": "id"}}


def test_the_id_of_a_query_is_in_its_checkpoint(directory):
    assert directory.query_id("10s") is None
    drawn = directory.ensure_query_id("10s")
    assert directory.query_id("10s") == directory.ensure_query_id("10s") == drawn
    assert (directory.checkpoint("10s") / "metadata").exists()
    directory.forget_queries()
    assert directory.query_id("10s") is None


def test_the_last_batch_and_its_offsets(directory):
    assert directory.last_batch("10s") == -1
    checkpoint = directory.checkpoint("10s")
    for name in ("commits", "offsets"):
        (checkpoint / name).mkdir(parents=True)
    for number in (9, 10):
        (checkpoint / "commits" / str(number)).touch()
    (checkpoint / "commits" / ".10.crc").touch()
    (checkpoint / "offsets" / "10").write_text('v1\n{}\n{"views": {"0": 7}}')
    assert directory.last_batch("10s") == 10
    assert directory.offsets("10s", 10) == {"views": {"0": 7}}


def test_a_batch_that_runs_again_reads_the_versions_of_its_first_attempt(directory):
    assert directory.pinned("10s", 4, {"pages": 7}) == {"pages": 7}
    assert directory.pinned("10s", 4, {"pages": 9}) == {"pages": 7}
    for number in range(5, 9):
        directory.pinned("10s", number, {"pages": number})
    kept = sorted(path.name for path in (directory.path / "queries/10s/inputs").iterdir())
    assert kept == ["7.json", "8.json"]


def test_a_run_is_asked_to_stop(directory):
    with directory.locked():
        assert not directory.is_asked_to_stop()
        directory.ask_to_stop()
        assert directory.is_asked_to_stop()
        directory.clear_stop()
        assert not directory.is_asked_to_stop()
