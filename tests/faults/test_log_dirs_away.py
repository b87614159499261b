"""One of several log directories is missing, empty, unusable or new: no partition starts over."""

import errno
import shutil
import time
from pathlib import Path

import pytest

from headrace.coordination.embedded import EmbeddedTree
from headrace.coordination.tree import Unwritable
from headrace.model.errors import ConfigError, ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.world.files import SystemFiles
from tests.fakes.held_moves import held_moves
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
A_RECORD = build_batch([Record(0, -1, None, b"1 book")])


@pytest.fixture
def directories(tmp_path):
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def stopped(directories):
    """A stopped broker with two log directories, and a record in each of four partitions."""
    broker = Broker(
        config={"log.dirs": ",".join(map(str, directories))},
        data=directories[0],
        topics={"orders": 4},
    )
    with broker, RawClient(broker.bootstrap_servers) as client:
        for partition in range(4):
            assert client.produce("orders", A_RECORD, partition=partition).error_code == 0
    yield broker
    broker.stop()


def partitions_in(directory, topic="orders"):
    return {int(p.name.rpartition("-")[2]) for p in directory.glob(f"{topic}-?")}


def high_watermarks(broker, topic="orders", count=4):
    """The high watermark of each partition, or the negated error that a consumer gets."""
    with RawClient(broker.bootstrap_servers) as client:
        answers = [client.fetch(topic, 0, partition=p) for p in range(count)]
    return [-a.error_code if a.error_code else a.high_watermark for a in answers]


def unmount(directory):
    directory.rename(directory.with_name("away"))


def mount_again(directory):
    if directory.is_dir():
        directory.rename(directory.with_name("was-there-instead"))
    elif directory.exists():
        directory.unlink()
    directory.with_name("away").rename(directory)


@pytest.mark.parametrize("instead", ["nothing", "an empty directory", "a file"])
def test_partitions_of_an_absent_directory_are_offline_until_it_is_back(
    stopped, directories, instead, caplog
):
    here, there = partitions_in(directories[0]), partitions_in(directories[1])
    assert len(here) == len(there) == 2
    unmount(directories[1])
    if instead == "an empty directory":
        directories[1].mkdir()
    elif instead == "a file":
        directories[1].write_bytes(b"")
    stopped.start()
    expected = [1 if p in here else -STORAGE_ERROR for p in range(4)]
    assert high_watermarks(stopped) == expected
    assert "partitions offline: 2" in caplog.text
    assert str(directories[1]) in caplog.text
    with RawClient(stopped.bootstrap_servers) as client:
        for partition in there:
            answer = client.produce("orders", A_RECORD, partition=partition)
            assert answer.error_code == STORAGE_ERROR
        states = {p.partition_index: p for p in client.metadata("orders").topics[0].partitions}
        for number, state in states.items():
            away = number in there
            assert state.offline_replicas == ([1] if away else [])
            assert state.leader_id == (-1 if away else 1)
            assert state.error_code == (ErrorCode.LEADER_NOT_AVAILABLE if away else 0)
    stopped.create_topics({"fresh": 2})
    assert high_watermarks(stopped, "fresh", 2) == [0, 0]
    stopped.restart()
    assert high_watermarks(stopped) == expected, "a second start without it changes nothing"
    stopped.stop()
    mount_again(directories[1])
    stopped.start()
    assert high_watermarks(stopped) == [1, 1, 1, 1]
    assert high_watermarks(stopped, "fresh", 2) == [0, 0], "not created at the mount point"


def test_the_assignment_is_known_after_a_kill(stopped, directories):
    stopped.start()
    stopped.create_topics({"late": 2})
    stopped.kill()
    unmount(directories[1])
    stopped.start()
    assert sorted(high_watermarks(stopped, "late", 2)) == [-STORAGE_ERROR, 0]


def test_moves_and_added_partitions_are_recorded_too(stopped, directories):
    stopped.start()
    with RawClient(stopped.bootstrap_servers) as client:
        request = m.AlterReplicaLogDirsRequest
        for partition in range(4):
            move = request.AlterReplicaLogDir(
                path=str(directories[1]),
                topics=[request.AlterReplicaLogDirTopic(name="orders", partitions=[partition])],
            )
            moved = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request(dirs=[move]))
            assert moved.results[0].partitions[0].error_code == 0
        wait_until(lambda: partitions_in(directories[1]) == {0, 1, 2, 3})
        grow = m.CreatePartitionsRequest
        grown = client.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            grow(
                topics=[grow.CreatePartitionsTopic(name="orders", count=6, assignments=None)],
                timeout_ms=5000,
            ),
        )
        assert grown.results[0].error_code == 0
    assert partitions_in(directories[0]) == {4, 5}
    stopped.stop()
    unmount(directories[1])
    stopped.start()
    assert high_watermarks(stopped, "orders", 6) == [-STORAGE_ERROR] * 4 + [0, 0]


def test_without_the_directory_of_the_tree_a_start_is_refused(stopped, directories):
    unmount(directories[0])
    directories[0].mkdir()
    with pytest.raises(ConfigError, match="mount the disk that holds it"):
        stopped.start()
    assert not (directories[0] / "headrace.sqlite").exists()
    mount_again(directories[0])
    stopped.start()
    assert high_watermarks(stopped) == [1, 1, 1, 1]


def test_a_new_disk_before_the_others_does_not_hide_the_tree(stopped, directories, tmp_path):
    config = {"log.dirs": ",".join(map(str, (tmp_path / "new", *directories)))}
    with Broker(config=config, data=tmp_path / "new") as broker:
        assert high_watermarks(broker) == [1, 1, 1, 1]
        assert not (tmp_path / "new" / "headrace.sqlite").exists()


def test_a_topic_deleted_while_its_disk_is_absent_stays_deleted(stopped, directories):
    unmount(directories[1])
    stopped.start()
    stopped.reset()
    stopped.create_topics({"orders": 1})
    stopped.stop()
    mount_again(directories[1])
    stopped.start()
    with RawClient(stopped.bootstrap_servers) as client:
        (topic,) = client.metadata("orders").topics
        assert len(topic.partitions) == 1
    assert high_watermarks(stopped, "orders", 1) == [0]
    assert partitions_in(directories[1]) <= {0}


def delete_orders(broker):
    """Delete the topic though some of its partitions are offline."""
    request = m.DeleteTopicsRequest
    with RawClient(broker.bootstrap_servers) as client:
        answer = client.ask(
            ApiKey.DELETE_TOPICS,
            6,
            request(topics=[request.DeleteTopicState(name="orders")], timeout_ms=5000),
        )
    assert answer.responses[0].error_code == 0


def topics_and_partition_directories(broker, directories):
    with RawClient(broker.bootstrap_servers) as client:
        names = {topic.name for topic in client.metadata().topics}
    return names, [path.name for each in directories for path in each.glob("orders-*")]


def test_a_topic_deleted_after_its_disk_failed_at_run_time_stays_deleted(stopped, directories):
    stopped.start()
    unmount(directories[1])
    Inside(stopped).services.logs.directories[1].take_offline("the disk was pulled")
    delete_orders(stopped)
    stopped.stop()
    mount_again(directories[1])
    assert len(partitions_in(directories[1])) == 2
    stopped.start()
    wait_until(
        lambda: topics_and_partition_directories(stopped, directories) == (set(), []), limit_s=10
    )
    stopped.restart()
    assert topics_and_partition_directories(stopped, directories) == (set(), [])


def test_a_topic_whose_deletion_meets_a_failing_disk_stays_deleted(
    stopped, directories, monkeypatch
):
    """The disk fails when the partition directory is renamed, not before."""
    stopped.start()
    real_rename = SystemFiles.rename

    def rename(path, target):
        if Path(path).parent == directories[1] and Path(path).name.startswith("orders"):
            raise OSError(errno.EIO, "Input/output error")
        real_rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(SystemFiles, "rename", staticmethod(rename))
        delete_orders(stopped)
        stopped.stop()
    assert len(partitions_in(directories[1])) == 2
    stopped.start()
    wait_until(
        lambda: topics_and_partition_directories(stopped, directories) == (set(), []), limit_s=10
    )


@pytest.mark.parametrize("moved_at", ["run time", "the last run"])
def test_a_topic_deleted_while_its_copy_is_on_an_absent_disk_stays_deleted(
    tmp_path, directories, moved_at, monkeypatch
):
    config = {"log.dirs": ",".join(map(str, directories))}
    with Broker(config=config, data=directories[0], topics={"orders": 1}) as broker:
        held = [each for each in directories if (each / "orders-0").exists()][0]
        (target,) = (each for each in directories if each != held)
        with RawClient(broker.bootstrap_servers) as client, held_moves(monkeypatch) as gate:
            assert client.produce("orders", A_RECORD).error_code == 0
            request = m.AlterReplicaLogDirsRequest
            move = request.AlterReplicaLogDir(
                path=str(target),
                topics=[request.AlterReplicaLogDirTopic(name="orders", partitions=[0])],
            )
            moved = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request(dirs=[move]))
            assert moved.results[0].partitions[0].error_code == 0
            wait_until(lambda: gate.copying == 1)
            (copy,) = target.glob("*-future")
            for path in (held / "orders-0").iterdir():  # as complete as just before the switch
                shutil.copy(path, copy)
            if moved_at == "run time":
                unmount(target)
                index = [directory.resolve() for directory in directories].index(target.resolve())
                Inside(broker).services.logs.directories[index].take_offline("the disk was pulled")
                delete_orders(broker)
            broker.stop()
        if moved_at == "the last run":
            (copy / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")  # as after a kill
            unmount(target)
            broker.start()
            delete_orders(broker)
            broker.stop()
        mount_again(target)
        broker.start()
        wait_until(
            lambda: topics_and_partition_directories(broker, directories) == (set(), []), limit_s=10
        )


def elect_uncleanly(client, partition):
    request = m.ElectLeadersRequest
    answer = client.ask(
        ApiKey.ELECT_LEADERS,
        2,
        request(
            election_type=1,
            topic_partitions=[request.TopicPartitions(topic="orders", partitions=[partition])],
            timeout_ms=5000,
        ),
    )
    (result,) = answer.replica_election_results[0].partition_result
    return result.error_code


def test_an_unclean_election_lets_a_lost_partition_start_over(stopped, directories):
    (gone, *_) = partitions_in(directories[1])
    unmount(directories[1])
    stopped.start()
    with RawClient(stopped.bootstrap_servers) as client:
        assert elect_uncleanly(client, gone) == 0
        assert client.produce("orders", A_RECORD, partition=gone).base_offset == 0
    stopped.restart()
    assert high_watermarks(stopped)[gone] == 1


def test_an_unclean_election_that_the_tree_refuses_changes_nothing(
    stopped, directories, monkeypatch
):
    (gone, *_) = partitions_in(directories[1])
    unmount(directories[1])
    stopped.start()

    async def refuse(tree, operations):
        raise Unwritable(operations[0].path)

    with RawClient(stopped.bootstrap_servers) as client:
        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedTree, "multi", refuse)
            assert elect_uncleanly(client, gone) == STORAGE_ERROR
        assert client.produce("orders", A_RECORD, partition=gone).error_code == STORAGE_ERROR
    stopped.stop()
    mount_again(directories[1])
    stopped.start()
    assert high_watermarks(stopped) == [1, 1, 1, 1]


def test_a_new_disk_is_used_after_the_partitions_of_the_old_one_are_deleted(stopped, directories):
    unmount(directories[1])
    stopped.start()
    stopped.create_topics({"elsewhere": 2})
    assert partitions_in(directories[1], "elsewhere") == set()
    stopped.reset()
    stopped.restart()
    stopped.create_topics({"orders": 2})
    assert len(partitions_in(directories[1])) == 1


def test_an_unfinished_copy_is_not_taken_for_an_absent_log(stopped, directories):
    (partition, *_) = partitions_in(directories[1])
    copy = directories[0] / f"orders-{partition}.{'0' * 32}-future"
    copy.mkdir()
    unmount(directories[1])
    stopped.start()
    assert high_watermarks(stopped)[partition] == -STORAGE_ERROR
    stopped.stop()
    mount_again(directories[1])
    stopped.start()
    assert high_watermarks(stopped) == [1, 1, 1, 1]


def test_a_disk_that_fails_at_run_time_is_offline_until_a_restart_finds_it_working(
    stopped, directories
):
    stopped.start()
    there = partitions_in(directories[1])
    logs = Inside(stopped).services.logs
    # From another thread, like a failing fsync.
    logs.directories[1].take_offline("fsync failed")
    with RawClient(stopped.bootstrap_servers) as client:

        def leaders():
            partitions = client.metadata("orders").topics[0].partitions
            return {p.partition_index: (p.leader_id, p.offline_replicas) for p in partitions}

        expected = {n: (-1, [1]) if n in there else (1, []) for n in range(4)}
        give_up_at = time.monotonic() + 10
        while leaders() != expected and time.monotonic() < give_up_at:
            time.sleep(0.01)
        assert leaders() == expected
        for partition in there:
            answer = client.produce("orders", A_RECORD, partition=partition)
            assert answer.error_code == STORAGE_ERROR
    stopped.restart()
    assert high_watermarks(stopped) == [1, 1, 1, 1]


# --- damaged files of one partition on a working disk


def damaged(broker, harm):
    directory = broker.data / "orders-0"
    directory = directory if directory.exists() else broker.data.with_name("b") / "orders-0"
    harm(directory)


def a_directory_for_the_log(directory):
    (directory / f"{0:020d}.log").rename(directory / "aside")
    (directory / f"{0:020d}.log").mkdir()


def a_file_for_the_directory(directory):
    directory.rename(directory.with_name("aside"))
    directory.write_bytes(b"")


@pytest.mark.parametrize("harm", [a_directory_for_the_log, a_file_for_the_directory])
def test_a_partition_that_cannot_be_opened_is_offline_alone(stopped, harm):
    damaged(stopped, harm)
    stopped.start()
    assert high_watermarks(stopped) == [-STORAGE_ERROR, 1, 1, 1]
    with RawClient(stopped.bootstrap_servers) as client:
        # An election must not cost its records: they may still be repaired.
        assert elect_uncleanly(client, 0) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert client.produce("orders", A_RECORD).error_code == STORAGE_ERROR
        for partition in (1, 2, 3):
            assert client.produce("orders", A_RECORD, partition=partition).error_code == 0


def test_a_log_file_that_becomes_a_directory_at_run_time_affects_one_partition(tmp_path):
    large = build_batch([Record(0, -1, None, bytes(600_000))])
    config = {"log.segment.bytes": 1 << 20}
    with Broker(config=config, data=tmp_path, topics={"orders": 2}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            for _ in range(2):
                assert client.produce("orders", large).error_code == 0
            assert client.produce("orders", A_RECORD, partition=1).error_code == 0
        broker.restart()  # closes the file of the first segment
        a_directory_for_the_log(tmp_path / "orders-0")
        assert high_watermarks(broker, count=2) == [-STORAGE_ERROR, 1]
        with RawClient(broker.bootstrap_servers) as client:
            assert client.fetch("orders", 1).error_code == 0, "the second segment is undamaged"
            assert client.produce("orders", A_RECORD, partition=1).error_code == 0


@pytest.mark.parametrize("kind", ["index", "log"])
def test_a_file_that_cannot_be_flushed_affects_one_partition(tmp_path, kind):
    """The index fails when its entries are saved, the log when it is fsynced."""
    config = {"log.flush.interval.messages": 1, "log.index.interval.bytes": 0}
    with (
        Broker(config=config, data=tmp_path, topics={"t": 1, "u": 1}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        assert client.produce("t", A_RECORD).error_code == 0
        file = tmp_path / "t-0" / f"{0:020d}.{kind}"
        file.rename(file.with_name("aside"))
        file.mkdir()
        assert client.produce("t", A_RECORD).error_code == STORAGE_ERROR
        assert client.produce("u", A_RECORD).error_code == 0
        file.rmdir()
        file.with_name("aside").rename(file)
        assert client.produce("t", A_RECORD).error_code == 0
