"""Where partitions are recorded to be, and what must not be created again."""

from headrace.core.directory_assignment import DirectoryAssignment, LoadedAssignment
from headrace.model.cluster_metadata import TopicDirectories
from headrace.model.ids import TopicPartition
from tests.fakes.groups import a_topic

TOPIC = a_topic("t", 3)


class Directories:
    """An assignment over directories ``a`` and ``b``, of which some are online."""

    def __init__(self, recorded, deleted=None, online=("a", "b")):
        topics = {"t": TopicDirectories(TOPIC.topic_id, recorded)} if recorded else {}
        self.online = set(online)
        self.assignment = DirectoryAssignment(
            LoadedAssignment({"a": "/a", "b": "/b"}, topics), deleted or {}, lambda: self.online
        )

    def apply(self, change):
        self.assignment.replay(change)
        return change


def test_a_partition_on_an_offline_directory_is_not_created_again():
    known = Directories({0: "a", 1: "b"}, online={"a"})
    places = known.assignment.find_offline([TOPIC], TOPIC.partitions, failed="")
    assert places == {TopicPartition("t", 1): "/b (directory.id b)"}
    assert known.assignment.is_offline(TopicPartition("t", 1))
    assert not known.assignment.is_offline(TopicPartition("t", 0))


def test_a_partition_that_was_never_recorded_waits_only_while_a_directory_is_offline():
    known = Directories({})
    assert known.assignment.find_offline([TOPIC], TOPIC.partitions, failed="") == {}
    found = known.assignment.find_offline([TOPIC], TOPIC.partitions[:1], failed="/b")
    assert found == {TopicPartition("t", 0): "/b"}


def test_an_assignment_of_an_earlier_topic_of_that_name_does_not_count():
    known = Directories({0: "b"}, online={"a"})
    again = a_topic("t", 1, fill="new")
    assert known.assignment.find_offline([again], again.partitions, failed="") == {}


def test_a_start_records_what_was_found_and_forgets_topics_that_are_gone():
    known = Directories({0: "a"})
    change = known.assignment.decide_settled({"t": TOPIC}, {TopicPartition("t", 1): "b"})
    assert change.topics["t"].directories == {0: "a", 1: "b"}
    known.apply(change)
    assert known.assignment.decide_settled({}, {}).topics == {"t": None}


def test_a_deleted_topic_is_noted_for_directories_that_are_offline_at_that_moment():
    known = Directories({0: "a", 1: "b"})
    known.online = {"a"}
    change = known.apply(known.assignment.decide_forgotten([TOPIC], {TOPIC.topic_id: ()}))
    assert change.topics == {"t": None}
    assert change.pending_deletions == {TOPIC.topic_id: {"b"}}
    known.online = {"a", "b"}
    settled = known.assignment.decide_settled({}, {})
    assert settled.pending_deletions == {TOPIC.topic_id: set()}


def test_a_directory_with_an_unfinished_copy_has_to_delete_it_too():
    known = Directories({0: "a"}, online={"a"})
    change = known.assignment.decide_forgotten([TOPIC], {TOPIC.topic_id: {"b"}})
    assert change.pending_deletions == {TOPIC.topic_id: {"b"}}


def test_partitions_are_recorded_before_they_are_created():
    known = Directories({0: "a"})
    change = known.assignment.decide_placed([TOPIC], {TopicPartition("t", 2): "b"})
    assert change.topics["t"].directories == {0: "a", 2: "b"}
