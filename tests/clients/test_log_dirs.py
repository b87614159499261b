"""Partitions in several log directories move between them while clients write."""

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from headrace.broker.periodic import PeriodicTasks
from headrace.broker.replication.log_dir_moves import LogDirMoves
from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.storage.compaction.log_cleaner import LogCleaner
from headrace.storage.log_copy import LogCopy
from headrace.testing import Broker, BrokerFailed
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.world.files import SystemFiles
from tests.fakes.held_moves import held_moves
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

A_BATCH = build_batch([Record(0, -1, None, b"1 book")])


def describe(raw, *, copies=False):
    """Size and lag by directory and partition: of the logs, or of the copies of moves."""
    response = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, m.DescribeLogDirsRequest(topics=None))
    return {
        result.log_dir: {
            f"{topic.name}-{p.partition_index}": (p.partition_size, p.offset_lag)
            for topic in result.topics
            for p in topic.partitions
            if p.is_future_key is copies
        }
        for result in response.results
    }


def directory_of(raw):
    """The directory of t-0."""
    (directory,) = [path for path, held in describe(raw).items() if "t-0" in held]
    return directory


def copies(raw):
    """Size and lag of the copies of t-0, by directory."""
    described = describe(raw, copies=True)
    return {path: held["t-0"] for path, held in described.items() if "t-0" in held}


def move(raw, directory, topic, partition=0):
    (code,) = move_all(raw, directory, topic, [partition])
    return code


def move_all(raw, directory, topic, partitions):
    request = m.AlterReplicaLogDirsRequest
    response = raw.ask(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        request(
            dirs=[
                request.AlterReplicaLogDir(
                    path=str(directory),
                    topics=[request.AlterReplicaLogDirTopic(name=topic, partitions=partitions)],
                )
            ]
        ),
    )
    return [partition.error_code for partition in response.results[0].partitions]


def test_new_partitions_go_to_the_directory_with_the_fewest(tmp_path):
    directories = [tmp_path / "a", tmp_path / "b"]
    config = {"log.dirs": ",".join(map(str, directories))}
    with (
        Broker(config=config, data=tmp_path, topics={"t": 6}) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        described = describe(raw)
        assert {path: len(held) for path, held in described.items()} == {
            str(directory): 3 for directory in directories
        }


def load(broker, over, sent, failures):
    """Produce numbers until ``over`` is set; runs in a thread."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})
    while not over.is_set():
        # This loop is faster than any broker, and a full queue raises.
        while len(producer) > 10_000:
            producer.poll(0.1)
        producer.produce(
            "t",
            b"%d" % len(sent),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        sent.append(1)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("flush_messages", [None, 1])
def test_a_partition_moves_under_load_and_nothing_is_lost(tmp_path, flush_messages):
    directories = [tmp_path / "a", tmp_path / "b"]
    config = {"log.dirs": ",".join(map(str, directories)), "log.index.interval.bytes": 100}
    if flush_messages is not None:
        config["log.flush.interval.messages"] = flush_messages
    with Broker(config=config, data=tmp_path, topics={"t": 1}) as broker:
        over = threading.Event()
        sent = []
        failures = []
        thread = threading.Thread(target=load, args=(broker, over, sent, failures))
        thread.start()
        with RawClient(broker.bootstrap_servers) as raw:
            here = directory_of(raw)
            (there,) = [str(directory) for directory in directories if str(directory) != here]
            for target in (there, here, there):
                assert move(raw, target, "t") == 0
                wait_until(lambda target=target: directory_of(raw) == target and not copies(raw))
            over.set()
            thread.join()
            assert failures == []
        wait_until(
            lambda: Path(there, "t-0").exists()
        )  # it is renamed after it is served from there
        assert len(list(Path(there).glob("t-0/*.log"))) == 1, "a move creates no segments"
        broker.restart()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        values = []
        while len(values) < len(sent):
            for record in consumer.consume(min(1000, len(sent) - len(values)), 20):
                values.append(int(record.value()))
        consumer.close()
        assert values == list(range(len(sent)))
        assert (tmp_path / there.rpartition("/")[2] / "t-0").exists()


# --- a move in progress ---------------------------------------------------------------------


@pytest.fixture
def gate(monkeypatch):
    with held_moves(monkeypatch) as gate:
        yield gate


@pytest.fixture
def directories(tmp_path):
    return [tmp_path / name for name in "abc"]


@pytest.fixture
def broker(tmp_path, directories):
    config = {"log.dirs": ",".join(map(str, directories)), "log.segment.delete.delay.ms": 0}
    with Broker(config=config, data=tmp_path, topics={"t": 1}) as broker:
        yield broker


@pytest.fixture
def raw(broker):
    with RawClient(broker.bootstrap_servers) as raw:
        for number in range(3):
            assert raw.produce("t", A_BATCH).base_offset == number
        yield raw


def others(raw, directories):
    return [directory for directory in directories if str(directory) != directory_of(raw)]


def left_over(directories):
    return [path.name for directory in directories for path in directory.glob("t-0?*")]


def test_a_move_is_answered_at_once_and_shown_while_it_runs(raw, directories, gate):
    here, there = directory_of(raw), others(raw, directories)[0]
    assert move(raw, there, "t") == 0
    assert copies(raw) == {str(there): (0, 3)}
    (directory,) = there.glob("t-0.*-future")
    assert move(raw, there, "t") == 0, "a repeated request"
    assert list(there.glob("t-0*")) == [directory]
    assert raw.produce("t", A_BATCH).base_offset == 3
    assert (directory_of(raw), copies(raw)) == (here, {str(there): (0, 4)})
    gate.set()
    wait_until(lambda: directory_of(raw) == str(there))
    wait_until(lambda: not left_over(directories))
    assert copies(raw) == {}
    assert len(raw.fetch("t", 0).records) == 4 * len(A_BATCH)


def test_a_request_for_another_directory_replaces_the_move(raw, directories, gate):
    first, second = others(raw, directories)
    assert move(raw, first, "t") == 0
    assert move(raw, second, "t") == 0
    assert list(copies(raw)) == [str(second)]
    gate.set()
    wait_until(lambda: directory_of(raw) == str(second))
    wait_until(lambda: not left_over(directories))


def test_a_refused_request_does_not_affect_the_move_in_progress(
    raw, directories, gate, monkeypatch
):
    first, second = others(raw, directories)
    assert move(raw, first, "t") == 0
    real_make_directory = SystemFiles.make_directory

    def make_directory(path):
        if Path(path).parent == second:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_make_directory(path)

    monkeypatch.setattr(SystemFiles, "make_directory", staticmethod(make_directory))
    assert move(raw, second, "t") == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(copies(raw)) == [str(first)]
    gate.set()
    wait_until(lambda: directory_of(raw) == str(first))


def test_a_request_for_the_current_directory_cancels_the_move(raw, directories, gate):
    here = directory_of(raw)
    assert move(raw, others(raw, directories)[0], "t") == 0
    assert move(raw, here, "t") == 0
    assert copies(raw) == {}
    wait_until(lambda: not left_over(directories))
    gate.set()
    assert directory_of(raw) == here
    assert raw.produce("t", A_BATCH).base_offset == 3


def test_the_copy_of_a_deleted_topic_is_deleted(raw, broker, directories, gate):
    assert move(raw, others(raw, directories)[0], "t") == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics(["t"])["t"].result()
    assert copies(raw) == {}
    wait_until(lambda: not [each for directory in directories for each in directory.glob("t-0*")])
    broker.create_topics({"t": 1})
    assert move(raw, others(raw, directories)[0], "t") == 0
    gate.set()
    wait_until(lambda: not copies(raw))
    assert raw.produce("t", A_BATCH).base_offset == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_interrupted_move_resumes_with_its_copy_after_the_next_start(
    raw, broker, directories, gate, how
):
    there = others(raw, directories)[0]
    assert move(raw, there, "t") == 0
    raw.sock.close()
    getattr(broker, how)()
    (copy,) = there.glob("t-0*-future")
    broker.start()
    assert copy.exists()
    with RawClient(broker.bootstrap_servers) as again:
        assert list(copies(again)) == [str(there)]
        gate.set()
        wait_until(lambda: directory_of(again) == str(there))
        wait_until(lambda: not left_over(directories))
        assert len(again.fetch("t", 0).records) == 3 * len(A_BATCH)


def set_throttle(broker, bytes_per_second):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        str(bytes_per_second),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource("broker", "1", incremental_configs=[entry])
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()


def test_moves_are_throttled_by_a_setting(raw, broker, directories):
    here, there = directory_of(raw), others(raw, directories)[0]
    set_throttle(broker, 0)
    assert move(raw, there, "t") == 0
    for number in range(3, 6):
        assert raw.produce("t", A_BATCH).base_offset == number
        assert (directory_of(raw), copies(raw)) == (here, {str(there): (0, number + 1)})
    set_throttle(broker, 1 << 20)
    wait_until(lambda: directory_of(raw) == str(there))
    assert len(raw.fetch("t", 0).records) == 6 * len(A_BATCH)


def test_moves_copy_one_at_a_time(raw, broker, directories, gate):
    there = others(raw, directories)[0]
    broker.create_topics({"u": 6, "deleted": 3})
    for topic, count in (("u", 6), ("deleted", 3)):
        for partition in range(count):
            assert move(raw, there, topic, partition) == 0
    assert list(there.glob("deleted-*-future"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics(["deleted"])["deleted"].result()
    wait_until(lambda: not list(there.glob("deleted-*")))
    assert len(list(there.glob("u-*-future"))) == 4
    gate.set()
    wait_until(lambda: not list(there.glob("u-*-future")))
    assert all((there / f"u-{partition}").exists() for partition in range(6))
    assert gate.copying_max == 1


def test_a_log_is_not_compacted_while_it_moves(raw, broker, directories, gate, monkeypatch):
    looked_at = []

    async def clean_dirtiest(self, logs, settings, now):
        looked_at.append({str(log.topic_partition) for log, _ in logs})

    monkeypatch.setattr(LogCleaner, "clean_dirtiest", clean_dirtiest)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    compacted = {"cleanup.policy": "compact"}
    admin.create_topics([NewTopic("c", 2, config=compacted)])["c"].result()
    (target,) = (path for path, held in describe(raw).items() if "c-1" in held)
    assert move(raw, target, "c", 0) == 0
    inside = Inside(broker)
    periodic = PeriodicTasks(inside.services)
    inside.run(periodic.compact())
    assert looked_at[-1] == {"c-1"}
    gate.set()
    wait_until(lambda: "c-0" in describe(raw)[target])
    wait_until(lambda: not inside.services.moves.is_moving(("c", 0)))
    inside.run(periodic.compact())
    assert looked_at[-1] == {"c-0", "c-1"}


def test_after_a_failed_move_the_partition_stays_in_its_directory(
    raw, directories, monkeypatch, caplog
):
    here, there = directory_of(raw), others(raw, directories)[0]

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LogCopy, "append", full)
        assert move(raw, there, "t") == 0
        wait_until(lambda: not left_over(directories))
    assert f"t-0 stays in {here}, because it could not be moved to {there}" in caplog.text
    assert "No space left on device" in caplog.text
    assert directory_of(raw) == here and copies(raw) == {}
    assert raw.produce("t", A_BATCH).base_offset == 3
    assert move(raw, there, "t") == 0
    wait_until(lambda: directory_of(raw) == str(there))


def test_a_bug_in_a_move_stops_the_broker(raw, broker, directories, monkeypatch):
    node = Inside(broker).node
    monkeypatch.setattr(LogCopy, "append", lambda *_, **__: 1 / 0)
    assert move(raw, others(raw, directories)[0], "t") == 0
    assert raw.is_closed_by_broker()
    assert isinstance(node.failure, ZeroDivisionError)
    with pytest.raises(BrokerFailed):
        broker.stop()


def test_an_invalid_request_is_refused_at_once(raw, broker, directories, tmp_path):
    there = others(raw, directories)[0]
    assert move(raw, tmp_path / "elsewhere", "t") == ErrorCode.LOG_DIR_NOT_FOUND
    assert move(raw, there, "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(raw, there, "t", 9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create_topics({"x" * 230: 1})
    for directory in directories:
        assert move(raw, directory, "x" * 230) == ErrorCode.INVALID_TOPIC_EXCEPTION
    Inside(broker).services.logs.directories[directories.index(there)].take_offline("it broke")
    assert move(raw, there, "t") == ErrorCode.KAFKA_STORAGE_ERROR


def test_many_moves_in_one_request_let_the_loop_run_in_between(
    raw, broker, directories, monkeypatch
):
    broker.create_topics({"u": 3})
    turns = []

    def ask(self, log, target):
        turns.append(log.topic_partition.partition)
        asyncio.get_running_loop().call_soon(turns.append, "another task")

    monkeypatch.setattr(LogDirMoves, "request", ask)
    assert move_all(raw, directories[0], "u", [0, 1, 2]) == [0, 0, 0]
    assert turns[:5] == [0, "another task", 1, "another task", 2]


def test_no_move_starts_after_moves_were_stopped(raw, broker, directories):
    inside = Inside(broker)
    inside.run(inside.services.moves.stop())
    there = others(raw, directories)[0]
    assert move(raw, there, "t") == ErrorCode.BROKER_NOT_AVAILABLE
    assert not left_over(directories)


def test_an_unreachable_directory_is_reported_as_failed(raw, broker, directories):
    gone = others(raw, directories)[0]
    gone.rename(gone.with_name("gone"))
    response = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, m.DescribeLogDirsRequest(topics=None))
    codes = {result.log_dir: result.error_code for result in response.results}
    expected = {str(directory): 0 for directory in directories}
    assert codes == {**expected, str(gone): ErrorCode.KAFKA_STORAGE_ERROR}
    assert Inside(broker).services.logs.directories[directories.index(gone)].offline


def test_the_broker_recompresses_with_the_level_of_the_topic(tmp_path):
    values = b"".join(b"%d words, and %d more\n" % (n * n, n % 77) for n in range(5000))
    batch = build_batch([Record(0, -1, None, values)])
    with (
        Broker(data=tmp_path) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        sizes = {}
        for level in (1, 9):
            settings = {"compression.type": "gzip", "compression.gzip.level": str(level)}
            topic = f"level-{level}"
            admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result()
            assert raw.produce(topic, batch).error_code == 0
            sizes[level] = sum(held.get(f"{topic}-0", (0, 0))[0] for held in describe(raw).values())
        assert 0 < sizes[9] < sizes[1] < len(batch)
