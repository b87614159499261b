"""The progress of ``verify-replicas`` in its file."""

import json

import pytest

from headrace.cli.output import CommandFailed
from headrace.cli.replica_comparison import Difference
from headrace.cli.replica_fetching import ReplicaPlaces
from headrace.cli.verification import Skipped
from headrace.cli.verification_state import Progress, VerificationState

PLACE = ReplicaPlaces("orders", bytes(range(16)), 0, 1, [1, 2], [], False)


def test_progress_is_found_again(tmp_path):
    file = tmp_path / "state.json"
    state = VerificationState("c1", file)
    progress = Progress(
        PLACE.topic_id.hex(), 7, True, [Difference(2, 3, "differs")], [Skipped(1, "offline")]
    )
    state.note(PLACE, progress)
    assert not file.exists()
    state.save()
    again = VerificationState("c1", file)
    assert again.is_continued and again.of(PLACE) == progress
    again.delete()
    assert not file.exists()


def test_a_topic_that_was_created_again_starts_over(tmp_path):
    state = VerificationState("c1", tmp_path / "state.json")
    state.note(PLACE, Progress(PLACE.topic_id.hex(), 7))
    assert state.of(PLACE._replace(topic_id=bytes(16))).next_offset == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not a state file"),
        ("[]", "not a state file"),
        ('{"version": 1, "cluster_id": "c1", "partitions": {"a": {}}}', "not a state file"),
        (json.dumps({"version": 9, "cluster_id": "c1", "partitions": {}}), "version 9"),
        (json.dumps({"version": 1, "cluster_id": "c2", "partitions": {}}), "cluster c2"),
    ],
)
def test_a_file_that_does_not_belong_here_is_refused(tmp_path, content, said):
    file = tmp_path / "state.json"
    file.write_text(content)
    with pytest.raises(CommandFailed, match=said):
        VerificationState("c1", file)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    state = VerificationState("c1", tmp_path / "missing" / "state.json")
    with pytest.raises(CommandFailed, match="missing"):
        state.save()
