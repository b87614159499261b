"""Periodic tasks use the current settings and do not block requests."""

import asyncio
from dataclasses import replace

from confluent_kafka import Producer

from headrace.broker import periodic
from headrace.model.settings.resources import ResourceType
from headrace.records.record import Record, build_batch
from headrace.storage.compaction.log_cleaner import LogCleaner
from headrace.testing import Broker
from tests.fakes.inside import Inside, lose_leadership
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until


def test_a_cleaner_that_never_finishes_reads_changed_settings(monkeypatch, tmp_path):
    speeds = []
    slower = {"log.cleaner.io.max.bytes.per.second": "1000"}

    async def clean_dirtiest(self, logs, settings, now):
        speeds.append(settings.bytes_per_second)
        await inside.services.controller.alter_configs(ResourceType.BROKER, "", slower)
        return len(speeds) < 3

    monkeypatch.setattr(LogCleaner, "clean_dirtiest", clean_dirtiest)
    with Broker(data=tmp_path) as broker:
        inside = Inside(broker)
        inside.run(periodic.PeriodicTasks(inside.services).compact())
    assert speeds[0] > 1000 and speeds[1:] == [1000, 1000]


def test_compaction_includes_replicas_without_leadership(monkeypatch, tmp_path):
    offered = []

    async def clean_dirtiest(self, logs, settings, now):
        offered.extend((log.topic_partition.topic, end) for log, end in logs)
        return False

    with Broker(data=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t", cleanup_policy="compact")
        client.produce("t", build_batch([Record(0, -1, b"k", b"x")]))
        inside = Inside(broker)
        inside.do(lambda: lose_leadership(inside.services, "t"))
        monkeypatch.setattr(LogCleaner, "clean_dirtiest", clean_dirtiest)
        inside.run(periodic.PeriodicTasks(inside.services).compact())
    assert ("t", 1) in offered


def test_every_other_round_includes_replicas_without_leadership_too(tmp_path):
    never = {"replica.high.watermark.checkpoint.interval.ms": "999999999"}
    with (
        Broker(data=tmp_path, config=never) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.create_topic("t", flush_ms="3600000")
        identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        record = Record(0, broker_time_ms(broker), None, b"x")
        assert client.produce("t", build_batch([record], **identity)).error_code == 0
        inside = Inside(broker)
        log = inside.replica("t").log
        inside.do(lambda: lose_leadership(inside.services, "t"))
        later = replace(inside.services, world=EightDaysLater(inside.services.world))
        rounds = periodic.PeriodicTasks(later)

        inside.run(rounds.checkpoint())
        file = tmp_path / "replication-offset-checkpoint"
        wait_until(lambda: file.exists() and "t 0 1" in file.read_text())
        assert log.flusher.recovery_point == 0
        inside.run(rounds.flush())
        assert log.flusher.recovery_point == 1
        assert list(log.producers.entries) == [7]
        inside.run(rounds.expire_producers())
        assert list(log.producers.entries) == []
        assert log.log_start == 0
        inside.run(rounds.retain())
        assert log.log_start == 1


class EightDaysLater:
    """The clock of another world, beyond flush.ms, producer expiration and retention.ms."""

    def __init__(self, world):
        self._world = world

    def now(self):
        return self._world.now() + 8 * 86_400_000


def broker_time_ms(broker):
    return Inside(broker).services.world.now()


def test_flush_ms_of_a_topic_created_later_is_applied(tmp_path):
    with Broker(data=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t", flush_ms="1")
        client.produce("t", build_batch([Record(0, -1, None, b"x")]))
        log = Inside(broker).replica("t").log
        wait_until(lambda: log.flusher.recovery_point == 1)


def test_a_long_flush_of_one_log_does_not_delay_others(tmp_path):
    config = {"log.flush.interval.ms": "1"}
    with Broker(data=tmp_path, topics={"held": 1, "other": 1}, config=config) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for topic in ("held", "other"):
            producer.produce(topic, b"x")
        assert producer.flush(20) == 0
        inside = Inside(broker)
        held, other = (inside.replica(topic).log for topic in ("held", "other"))

        async def flush_beside():
            async with held.flusher.turn:
                await periodic.PeriodicTasks(inside.services).flush()
                # The broker's own task may have been at the other log; wait for it here.
                async with other.flusher.turn:
                    return other.flusher.recovery_point

        assert inside.run(flush_beside()) == other.log_end == 1


def test_a_checkpoint_of_many_logs_lets_requests_run(monkeypatch, tmp_path):
    """It skips a disk that fails and a topic that is deleted meanwhile."""
    config = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    with Broker(data=tmp_path, topics={"t": 6, "last": 2}, config=config) as broker:
        inside = Inside(broker)
        logs = inside.services.logs
        noted = []
        two_are_noted = asyncio.Event()

        def note(log, high_watermark):
            noted.append(log)
            if len(noted) == 2:
                two_are_noted.set()

        monkeypatch.setattr(logs, "note_offsets", note)
        for_later = []
        monkeypatch.setattr(logs, "checkpoint_noted", lambda: for_later.extend(noted))

        async def fail_beside():
            checkpointing = asyncio.ensure_future(
                periodic.PeriodicTasks(inside.services, segments_per_step=2).checkpoint()
            )
            await two_are_noted.wait()
            (failed,) = {log.directory for log in logs} - {noted[-1].directory}
            failed.offline = "it broke"
            await inside.services.replicas.delete([log.topic_partition for log in logs][-2:])
            await checkpointing
            failed.offline = None
            return failed

        failed = inside.run(fail_beside())
        assert for_later == noted and 2 < len(noted) < 6
        assert not any(log.directory is failed for log in noted[2:])
