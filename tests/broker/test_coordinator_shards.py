"""The coordinator runtime loads, asks, writes and drops shards, on real logs."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from headrace.broker.broker import Broker
from headrace.broker.clock import SteadyClock
from headrace.broker.coordinators.host import Host
from headrace.broker.coordinators.runtime import CoordinatorRuntime
from headrace.broker.peers import Peers
from headrace.core.outcome import NOTHING, NewRecord, Outcome, ProducerStamp, Reply
from headrace.core.topics import NewTopic
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, TopicPartition
from headrace.records.record import Record, build_batch
from headrace.storage.log_retention import delete_records_before
from headrace.storage.log_truncation import truncate_to
from headrace.wire import messages as m
from tests.fakes.inside import in_sync, lose_leadership, regain_leadership
from tests.fakes.standin import in_loop

TOPIC = "notes"


def answer(text):
    return m.FindCoordinatorResponse(error_message=text)


class Notes:
    """A shard that stores texts by key, replies on request, and rings at its deadline."""

    def __init__(self, partition):
        self.partition = partition
        self.texts = {}
        self.pending = {}
        self.rings_at = None
        self.rung = []
        self.is_loaded = False
        self.parked = []

    def replay(self, record_key, record_value, offset, producer_id, producer_epoch):
        texts = self.texts if producer_id < 0 else self.pending.setdefault(producer_id, {})
        texts[record_key] = record_value
        if record_value is None:
            del texts[record_key]

    def replay_marker(self, producer_id, producer_epoch, committed, offset):
        held = self.pending.pop(producer_id, {})
        if committed:
            self.texts |= held

    def loaded(self, now):
        self.is_loaded = True
        return NOTHING

    def tick(self, now):
        self.rung.append(now)
        self.rings_at = None
        return Outcome((NewRecord(b"rung", b"yes"),), tuple(self.unpark("rung")))

    def next_deadline(self):
        return self.rings_at

    # events

    def write(self, ticket, *records, **more):
        records = tuple(NewRecord(key, value) for key, value in records)
        return Outcome(records, (Reply(ticket, answer("written")),), **more)

    def read(self, ticket, key):
        text = self.texts.get(key, b"-").decode()
        return Outcome(replies=(Reply(ticket, answer(text)),))

    def park(self, ticket):
        self.parked.append(ticket)
        return NOTHING

    def unpark(self, text):
        parked, self.parked = self.parked, []
        return [Reply(ticket, answer(text)) for ticket in parked]


def host_of(services):
    return Host(
        services.loop,
        SteadyClock(services.world.now, services.loop.time),
        services.dynamic_config,
        services.metadata_cache,
        services.replicas,
        services.appender,
        services.waiting,
        services.tasks,
        services.fail,
        Peers(services.metadata.brokers.get, "PLAINTEXT", services.world.network.dial),
    )


@asynccontextmanager
async def coordinated(directory, partition_count=1, effects=None, fail=None, **settings):
    config = BrokerConfig.parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
    )
    broker = Broker(config)
    await broker.start()
    host = host_of(broker.services)
    coordinator = CoordinatorRuntime(
        host if fail is None else host._replace(fail=fail),
        TOPIC,
        "offsets.topic.num.partitions",
        Notes,
        (lambda partition, effect: effects.append((partition, effect)))
        if effects is not None
        else None,
    )
    try:
        if TOPIC not in broker.services.metadata.topics:
            await broker.services.controller.create_topics([NewTopic(TOPIC, partition_count)])
        coordinator.shards.refresh()
        yield broker, coordinator
    finally:
        coordinator.close()
        await broker.stop()
        assert broker.failure is None


def write(coordinator, *records, partition=0, **more):
    return coordinator.ask_partition(
        partition, lambda shard, ticket, now: shard.write(ticket, *records, **more)
    )


def read(coordinator, key, partition=0):
    found = coordinator.ask_partition(partition, lambda shard, ticket, now: shard.read(ticket, key))
    return found.error_message


def shard_of(coordinator, partition=0):
    found = []
    coordinator.tell(partition, lambda shard, now: found.append(shard) or NOTHING)
    return found[0]


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


# Asking.


@in_loop
async def test_a_written_record_is_answered_at_once_and_can_be_read(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        assert write(coordinator, (b"k", b"v")).error_message == "written"
        assert read(coordinator, b"k") == "v"
        log = broker.services.replicas.require(TOPIC, 0).log
        assert log.log_end == 1


@in_loop
async def test_a_restart_restores_all_written_records(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        write(coordinator, (b"a", b"1"), (b"b", b"2"))
        write(coordinator, (b"a", None))
        write(coordinator, (b"c", b"3"), producer=ProducerStamp(7, 0))
        write(coordinator, (b"d", b"4"), producer=ProducerStamp(8, 0))
        for producer_id, committed in ((7, True), (8, False)):
            coordinator.write_marker(
                0,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                committed=committed,
            )
        assert shard_of(coordinator).texts == {b"b": b"2", b"c": b"3"}
    async with coordinated(tmp_path) as (_, coordinator):
        with pytest.raises(Rejected) as refused:
            read(coordinator, b"b")
        assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: not coordinator.shards.is_loading())
        assert shard_of(coordinator).texts == {b"b": b"2", b"c": b"3"}
        assert coordinator.shards.loaded_partitions() == [0]


@in_loop
async def test_a_log_of_many_chunks_is_loaded_whole(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        for number in range(40):
            write(coordinator, *((b"%d-%d" % (number, i), b"x" * 200) for i in range(100)))
    async with coordinated(tmp_path) as (_, coordinator):
        await until(lambda: not coordinator.shards.is_loading())
        assert len(shard_of(coordinator).texts) == 4000


@in_loop
async def test_a_request_may_wait_for_another_event(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        waiting = coordinator.ask_partition(0, lambda shard, ticket, now: shard.park(ticket))
        coordinator.tell_all(lambda shard, now: Outcome(replies=tuple(shard.unpark("at last"))))
        assert (await waiting).error_message == "at last"


class Slowly:
    """A decision in a thread that continues when the test lets it."""

    def __init__(self, *records):
        self.records = records
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, shard, ticket, now):
        self.has_begun.set()
        assert self.may_go_on.wait(20)
        return shard.write(ticket, *self.records)

    def ask(self, coordinator, partition=0):
        return coordinator.ask_partition(partition, self, lambda shard: True)


@in_loop
async def test_a_large_decision_delays_its_own_shard_only(tmp_path):
    async with coordinated(tmp_path, partition_count=2) as (_, coordinator):
        slowly = Slowly((b"k", b"large"))
        large = slowly.ask(coordinator)
        await until(slowly.has_begun.is_set)
        assert write(coordinator, (b"k", b"v"), partition=1).error_message == "written"
        assert read(coordinator, b"k", partition=1) == "v"

        def ask_to_read():
            return coordinator.ask_partition(0, lambda shard, ticket, now: shard.read(ticket, b"k"))

        before, changed, after = (ask_to_read(), write(coordinator, (b"k", b"next")), ask_to_read())
        assert not any(one.done() for one in (large, before, changed, after))
        slowly.may_go_on.set()
        said = [(await one).error_message for one in (large, before, changed, after)]
        assert said == ["written", "large", "written", "next"]
        assert read(coordinator, b"k") == "next"  # at once again: the queue is empty


@in_loop
async def test_time_events_and_markers_wait_while_a_shard_is_busy(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        write(coordinator, (b"held", b"1"), producer=ProducerStamp(7, 0))
        shard = shard_of(coordinator)
        slowly = Slowly((b"k", b"large"))
        large = slowly.ask(coordinator)
        await until(slowly.has_begun.is_set)
        told = []
        coordinator.tell_all(lambda shard, now: told.append(dict(shard.texts)) or NOTHING)
        marked = coordinator.write_marker(
            0, producer_id=7, producer_epoch=0, coordinator_epoch=0, committed=True
        )
        shard.rings_at = coordinator.now()
        coordinator.wake()
        assert (told, shard.rung, marked.done()) == ([], [], False)
        slowly.may_go_on.set()
        assert (await large).error_message == "written"
        await marked
        assert told == [{b"k": b"large"}]
        await until(lambda: shard.rung)
        assert shard.texts == {b"k": b"large", b"held": b"1", b"rung": b"yes"}


@in_loop
async def test_requests_queued_for_a_taken_shard_fail_if_it_is_lost(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        slowly = Slowly((b"k", b"large"))
        waiting = [slowly.ask(coordinator), write(coordinator, (b"k", b"next"))]
        await until(slowly.has_begun.is_set)
        coordinator.close()
        for one in waiting:
            with pytest.raises(Rejected) as refused:
                await one
            assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        slowly.may_go_on.set()
        await asyncio.sleep(0.05)
        assert broker.services.replicas.require(TOPIC, 0).log.log_end == 0, (
            "what was decided is not written"
        )


@in_loop
async def test_a_shard_that_is_lost_between_two_batches_writes_no_more(tmp_path):
    async with coordinated(tmp_path, message_max_bytes=2000) as (broker, coordinator):
        records = [(b"%d" % number, b"x" * 100) for number in range(100)]
        shard = shard_of(coordinator)
        has_begun, may_go_on = threading.Event(), threading.Event()

        def replay_slowly(*record):
            has_begun.set()
            assert may_go_on.wait(20)

        shard.replay = replay_slowly
        waiting = coordinator.ask_partition(
            0,
            lambda shard, ticket, now: shard.write(
                ticket, *records, splittable=True, effects=("of a shard that is gone",)
            ),
            lambda shard: True,
        )
        await until(has_begun.is_set)
        first_end = broker.services.replicas.require(TOPIC, 0).log.log_end
        assert 0 < first_end < len(records)
        coordinator.close()
        with pytest.raises(Rejected):
            await waiting
        may_go_on.set()
        await until(lambda: not len(broker.services.tasks))
        assert broker.services.replicas.require(TOPIC, 0).log.log_end == first_end


@in_loop
async def test_a_bug_in_a_large_decision_fails_its_request_and_not_the_shard(tmp_path):
    def stumble(shard, ticket, now):
        raise ZeroDivisionError

    async with coordinated(tmp_path) as (_, coordinator):
        with pytest.raises(ZeroDivisionError):
            await coordinator.ask_partition(0, stumble, lambda shard: True)
        assert write(coordinator, (b"k", b"v")).error_message == "written"


@in_loop
async def test_a_partition_that_is_not_hosted_here_is_not_coordinated_here(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        with pytest.raises(Rejected) as refused:
            read(coordinator, b"k", partition=5)
        assert refused.value.code == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_an_event_during_loading_reaches_the_shard_afterwards(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        write(coordinator, (b"a", b"1"))
    async with coordinated(tmp_path) as (_, coordinator):
        coordinator.tell_all(lambda shard, now: Outcome((NewRecord(b"a", None),)))
        await until(lambda: not coordinator.shards.is_loading())
        assert shard_of(coordinator).texts == {}


@in_loop
async def test_records_of_other_writers_are_loaded_by_their_keys(tmp_path):
    async with coordinated(tmp_path) as (broker, _):
        foreign = build_batch([Record(0, 5, None, b"no key"), Record(1, 9, b"k", b"v")])
        log = broker.services.replicas.require(TOPIC, 0).log
        log.append_as_leader(memoryview(bytearray(foreign)), 0, Millis(1), origin=1)
        log.write_staged()
    async with coordinated(tmp_path) as (_, coordinator):
        await until(lambda: not coordinator.shards.is_loading())
        assert shard_of(coordinator).texts == {b"k": b"v"}


@in_loop
async def test_a_log_that_cannot_be_read_is_not_coordinated(tmp_path, caplog):
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"a", b"1"))
        log = broker.services.replicas.require(TOPIC, 0).log
        garbage = bytearray(build_batch([Record(0, 0, b"k", b"v")]))
        garbage[61] = 0x7E  # a record longer than its batch
        log.append_as_leader(memoryview(garbage), 0, Millis(1), origin=1)
        log.write_staged()
    async with coordinated(tmp_path) as (_, coordinator):
        await until(lambda: not coordinator.shards.is_loading())
        with pytest.raises(Rejected) as refused:
            read(coordinator, b"a")
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        assert "cannot be read" in caplog.text


@in_loop
async def test_loading_ends_if_the_log_became_shorter(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"a", b"1"))
        (file,) = broker.services.replicas.require(TOPIC, 0).log.path.glob("*.log")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        lose_leadership(broker.services, TOPIC)
        regain_leadership(broker.services, TOPIC)
        coordinator.shards.refresh()
        await until(lambda: not coordinator.shards.is_loading())
        with pytest.raises(Rejected, match="cannot be read"):
            read(coordinator, b"a")
        file.write_bytes(whole)


# Committing.


def behind(broker, is_behind):
    """Add a second replica that has no records yet to the ISR, or remove it."""
    in_sync(broker.services, TOPIC, isr=(1, 2) if is_behind else (1,))


@in_loop
async def test_replies_wait_for_the_high_watermark_and_so_do_reads_and_effects(tmp_path):
    effects = []
    async with coordinated(tmp_path, effects=effects) as (broker, coordinator):
        behind(broker, True)
        written = write(coordinator, (b"k", b"v"), effects=("do it",))
        seen = coordinator.ask_partition(0, lambda shard, ticket, now: shard.read(ticket, b"k"))
        await asyncio.sleep(0)
        assert not written.done() and not seen.done() and effects == []
        behind(broker, False)
        assert (await written).error_message == "written"
        assert (await seen).error_message == "v"
        assert effects == [(0, "do it")]
        assert write(coordinator, (b"l", b"w")).error_message == "written"


@in_loop
async def test_a_commit_that_takes_too_long_is_refused_and_its_effects_still_run(tmp_path):
    effects = []
    async with coordinated(tmp_path, effects=effects, offsets_commit_timeout_ms=1) as (
        broker,
        coordinator,
    ):
        behind(broker, True)
        written = write(coordinator, (b"k", b"v"), effects=("late",))
        with pytest.raises(Rejected) as refused:
            await written
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert effects == []
        behind(broker, False)
        assert effects == [(0, "late")]


@in_loop
async def test_a_commit_that_takes_too_long_is_refused_while_a_thread_has_the_shard(tmp_path):
    async with coordinated(tmp_path, offsets_commit_timeout_ms=1) as (broker, coordinator):
        behind(broker, True)
        written = write(coordinator, (b"k", b"v"))
        slowly = Slowly((b"k", b"large"))
        large = slowly.ask(coordinator)
        await until(slowly.has_begun.is_set)
        try:
            await until(written.done)
            assert written.exception().code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert not large.done()
            behind(broker, False)
        finally:
            slowly.may_go_on.set()
        assert (await large).error_message == "written"


@in_loop
async def test_a_marker_waits_for_the_high_watermark_too(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"c", b"3"), producer=ProducerStamp(7, 0))
        behind(broker, True)
        ended = coordinator.write_marker(
            0, producer_id=7, producer_epoch=0, coordinator_epoch=0, committed=True
        )
        assert ended is not None and not ended.done()
        behind(broker, False)
        await ended
        assert shard_of(coordinator).texts == {b"c": b"3"}


# Failing.


@in_loop
async def test_a_failed_write_drops_the_shard_and_keeps_acknowledged_records(tmp_path, monkeypatch):
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"k", b"kept"))
        waiting = coordinator.ask_partition(0, lambda shard, ticket, now: shard.park(ticket))
        old = shard_of(coordinator)
        replica = broker.services.replicas.require(TOPIC, 0)

        def refuse(self):
            self._undo_staged()
            raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")

        with monkeypatch.context() as patched:
            patched.setattr(type(replica.log), "write_staged", refuse)
            with pytest.raises(Rejected) as refused:
                write(coordinator, (b"k", b"lost"))
            assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(Rejected):
            await waiting
        with pytest.raises(Rejected) as loading:
            read(coordinator, b"k")
        assert loading.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: not coordinator.shards.is_loading())
        assert shard_of(coordinator) is not old
        assert read(coordinator, b"k") == "kept"


@in_loop
async def test_a_shard_dropped_as_it_is_loaded_handles_no_queued_events(tmp_path, monkeypatch):
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"a", b"1"))
    async with coordinated(tmp_path) as (broker, coordinator):
        log = broker.services.replicas.require(TOPIC, 0).log
        write_staged, handled = type(log).write_staged, []

        def refuse(self):
            monkeypatch.setattr(type(log), "write_staged", write_staged)
            self._undo_staged()
            raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")

        def event(shard, now):
            handled.append(shard)
            return Outcome((NewRecord(b"b", b"2"),))

        monkeypatch.setattr(type(log), "write_staged", refuse)
        coordinator.tell_all(event)
        coordinator.tell_all(event)
        await until(lambda: not coordinator.shards.is_loading())
        assert len(handled) == 1
        assert log.log_end == 1


@in_loop
async def test_a_bug_after_a_marker_was_appended_stops_the_broker(tmp_path, monkeypatch):
    failures = []
    async with coordinated(tmp_path, fail=failures.append) as (_, coordinator):
        write(coordinator, (b"held", b"1"), producer=ProducerStamp(7, 0))
        monkeypatch.setattr(Notes, "replay_marker", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            coordinator.write_marker(
                0, producer_id=7, producer_epoch=0, coordinator_epoch=0, committed=True
            )
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


@in_loop
async def test_waiting_requests_are_refused_when_another_broker_leads(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        waiting = coordinator.ask_partition(0, lambda shard, ticket, now: shard.park(ticket))
        lose_leadership(broker.services, TOPIC)
        coordinator.shards.refresh()
        with pytest.raises(Rejected) as refused:
            await waiting
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(Rejected) as refused:
            read(coordinator, b"k")
        assert refused.value.code == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_a_gained_partition_is_loaded_before_the_first_request(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"k", b"v"))
        lose_leadership(broker.services, TOPIC)
        await until(lambda: 0 not in coordinator.shards)
        regain_leadership(broker.services, TOPIC)
        await until(lambda: coordinator.shards.loaded_partitions() == [0])
        assert read(coordinator, b"k") == "v"


@in_loop
async def test_a_shard_is_loaded_past_the_high_watermark_and_answers_once_that_is_committed(
    tmp_path,
):
    effects = []
    async with coordinated(tmp_path, effects=effects) as (broker, coordinator):
        write(coordinator, (b"k", b"old"))
        behind(broker, True)
        refused = write(coordinator, (b"k", b"new"))
        lose_leadership(broker.services, TOPIC)
        with pytest.raises(Rejected) as refusal:
            await refused
        assert refusal.value.code == ErrorCode.NOT_COORDINATOR
        behind(broker, True)  # it leads again, and the follower has not fetched yet
        assert broker.services.replicas.require(TOPIC, 0).high_watermark == 1
        await until(lambda: coordinator.shards.loaded_partitions() == [0])
        seen = coordinator.ask_partition(
            0, lambda shard, ticket, now: shard.read(ticket, b"k")._replace(effects=("do it",))
        )
        await asyncio.sleep(0)
        assert not seen.done() and effects == []
        behind(broker, False)
        assert (await seen).error_message == "new", "the record may be committed: it must count"
        assert effects == [(0, "do it")]


@in_loop
async def test_a_leader_that_stays_keeps_its_shard_and_its_waiting_requests(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        shard = shard_of(coordinator)
        waiting = coordinator.ask_partition(0, lambda shard, ticket, now: shard.park(ticket))
        leader_epoch = broker.services.replicas.require(TOPIC, 0).partition.leader_epoch
        for is_behind in (True, False):
            behind(broker, is_behind)
        assert broker.services.replicas.require(TOPIC, 0).partition.leader_epoch > leader_epoch
        await asyncio.sleep(0.01)
        assert shard_of(coordinator) is shard and not waiting.done()
        assert write(coordinator, (b"k", b"v")).error_message == "written"


@pytest.mark.parametrize("delete", [False, True])
@in_loop
async def test_a_stopped_replica_takes_its_shard_along(tmp_path, delete):
    """A leader that was reassigned away hears StopReplica only."""
    async with coordinated(tmp_path) as (broker, coordinator):
        write(coordinator, (b"k", b"v"))
        waiting = coordinator.ask_partition(0, lambda shard, ticket, now: shard.park(ticket))
        replicas = broker.services.replicas
        leader_epoch = replicas.require(TOPIC, 0).partition.leader_epoch
        stopped = replicas.stop_replica(TopicPartition(TOPIC, 0), leader_epoch, delete=delete)
        assert stopped is ErrorCode.NONE
        broker.services.waiting.serve()
        with pytest.raises(Rejected) as refused:
            await waiting
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(Rejected) as refused:
            read(coordinator, b"k")
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        assert 0 not in coordinator.shards


@in_loop
async def test_a_key_has_no_partition_before_its_topic_is_known(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        known = broker.services.metadata_cache.current
        broker.services.metadata_cache.current = known.with_topics([], removed=[TOPIC])
        with pytest.raises(Rejected) as refused:
            coordinator.ask("any", lambda shard, ticket, now: shard.read(ticket, b"k"))
        broker.services.metadata_cache.current = known
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        found = coordinator.ask("any", lambda shard, ticket, now: shard.read(ticket, b"k"))
        assert found.error_message == "-"


LONG_TEXT = b"text" * 75_000  # more than a piece: each batch is replayed in a turn of its own


@asynccontextmanager
async def loading(directory, monkeypatch, meanwhile):
    """A coordinator with three batches; calls ``meanwhile`` when it has replayed the first."""
    async with coordinated(directory) as (broker, coordinator):
        for key in (b"a", b"b", b"c"):
            write(coordinator, (key, LONG_TEXT))
    async with coordinated(directory) as (broker, coordinator):
        replay, keys = Notes.replay, []

        def note_and_replay(shard, key, *more):
            keys.append(key)
            if len(keys) == 1:
                meanwhile(broker)
            return replay(shard, key, *more)

        monkeypatch.setattr(Notes, "replay", note_and_replay)
        yield broker, coordinator


@in_loop
async def test_records_that_are_deleted_while_loading_do_not_end_it(tmp_path, monkeypatch):
    def delete(broker):
        delete_records_before(broker.services.replicas.require(TOPIC, 0).log, Offset(2))

    async with loading(tmp_path, monkeypatch, delete) as (_, coordinator):
        await until(lambda: not coordinator.shards.is_loading())
        assert read(coordinator, b"c") == LONG_TEXT.decode()


@in_loop
async def test_a_topic_deleted_while_loading_logs_no_error(tmp_path, monkeypatch, caplog):
    def delete(broker):
        broker.services.tasks.spawn(broker.services.replicas.delete([TopicPartition(TOPIC, 0)]))

    async with loading(tmp_path, monkeypatch, delete) as (broker, _):
        await until(
            lambda: (
                broker.services.replicas.get(TOPIC, 0) is None and not len(broker.services.tasks)
            )
        )
    assert "cannot be read" not in caplog.text


@in_loop
async def test_a_log_truncated_after_leadership_was_lost_is_not_reported(
    tmp_path, monkeypatch, caplog
):
    def follow(broker):
        lose_leadership(broker.services, TOPIC)
        truncate_to(broker.services.replicas.require(TOPIC, 0).log, Offset(1))

    async with loading(tmp_path, monkeypatch, follow) as (broker, coordinator):
        await until(lambda: not len(broker.services.tasks))
        assert 0 not in coordinator.shards
        assert broker.services.replicas.require(TOPIC, 0).log.log_end == 1
        regain_leadership(broker.services, TOPIC)
        await until(lambda: coordinator.shards.loaded_partitions() == [0])
        assert set(shard_of(coordinator).texts) == {b"a"}
    assert "cannot be read" not in caplog.text


@in_loop
async def test_too_few_replicas_refuse_before_anything_is_written(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        in_sync(broker.services, TOPIC, isr=(1,), replicas=(1, 2), min_isr=2)
        with pytest.raises(Rejected) as refused:
            write(coordinator, (b"k", b"v"))
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        in_sync(broker.services, TOPIC, isr=(1,), min_isr=1)
        assert read(coordinator, b"k") == "-", "the shard was not dropped and has not replayed it"


@in_loop
async def test_records_that_do_not_fit_into_a_batch_are_refused_or_split(tmp_path):
    async with coordinated(tmp_path, message_max_bytes=2000) as (broker, coordinator):
        records = [(b"%d" % number, b"x" * 100) for number in range(100)]
        with pytest.raises(Rejected) as refused:
            write(coordinator, *records)
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert shard_of(coordinator).texts == {}
        assert write(coordinator, *records, splittable=True).error_message == "written"
        assert len(shard_of(coordinator).texts) == 100
        assert broker.services.replicas.require(TOPIC, 0).log.log_end == 100


@in_loop
async def test_stopping_refuses_waiting_requests(tmp_path):
    async with coordinated(tmp_path) as (_, coordinator):
        waiting = coordinator.ask_partition(0, lambda shard, ticket, now: shard.park(ticket))
        coordinator.close()
        with pytest.raises(Rejected) as refused:
            await waiting
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(Rejected):
            read(coordinator, b"k")


# Time.


@in_loop
async def test_a_shard_is_woken_at_its_deadline(tmp_path):
    async with coordinated(tmp_path, partition_count=2) as (_, coordinator):

        def ring_soon(shard, ticket, now):
            shard.rings_at = now + 20
            return shard.park(ticket)

        waiting = coordinator.ask_partition(0, ring_soon)
        assert (await waiting).error_message == "rung"
        shard = shard_of(coordinator)
        assert len(shard.rung) == 1 and shard.texts == {b"rung": b"yes"}
        assert shard_of(coordinator, 1).rung == []


@in_loop
async def test_a_shard_that_is_woken_slightly_early_is_woken_again(tmp_path):
    """A client may sleep for exactly the session timeout and then delete the group."""
    async with coordinated(tmp_path) as (broker, coordinator):
        shard, rings_in_ms = shard_of(coordinator), 3_600_000
        asked_at = broker.services.loop.time()

        def ring_later(shard, now):
            shard.rings_at = now + rings_in_ms
            return NOTHING

        def next_deadline_s():
            return broker.services.waiting.next_deadline_ms() / 1000

        coordinator.tell(0, ring_later)
        first = next_deadline_s()
        assert asked_at <= first - rings_in_ms / 1000 <= broker.services.loop.time()
        coordinator.wake()
        assert shard.rung == [] and next_deadline_s() >= first


@in_loop
async def test_a_shard_is_woken_again_if_its_decision_could_not_be_written(tmp_path):
    async with coordinated(tmp_path) as (broker, coordinator):
        in_sync(broker.services, TOPIC, isr=(1,), replicas=(1, 2), min_isr=2)

        def try_later(shard, now):
            shard.rings_at = now + 20
            return Outcome((NewRecord(b"k", b"v"),))

        def asked(shard, ticket, now):
            return try_later(shard, now) + shard.read(ticket, b"k")

        shard = shard_of(coordinator)
        coordinator.tell(0, try_later)
        await until(lambda: len(shard.rung) == 1)
        with pytest.raises(Rejected):
            coordinator.ask_partition(0, asked)
        await until(lambda: len(shard.rung) == 2)
