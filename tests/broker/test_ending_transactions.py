"""The transaction coordinator, its markers and the partitions, when one waits for another.

On one node nothing waits, so these tests hold markers back and give a partition a
follower that lags.
"""

import asyncio
import threading
import time

import pytest

from headrace.core.transactions.effects import DrawProducerId
from headrace.model.errors import ErrorCode, Rejected
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import Inside, lose_leadership, regain_leadership
from tests.fakes.transactional_client import (
    TransactionalClient,
    records_in,
    transactional_batch,
)
from tests.fakes.waiting import wait_until

NONE = ErrorCode.NONE
SLOW = {"add.partitions.to.txn.retry.backoff.max.ms": 30_000}
QUICK = {"add.partitions.to.txn.retry.backoff.max.ms": 0}


class Held(Inside):
    """A running broker whose markers can be held back."""

    def __init__(self, broker):
        super().__init__(broker)
        self.held = []

    def hold_markers(self):
        def hold(marker, partitions, report):
            self.held.append((marker, list(partitions), report))

        self.do(lambda: setattr(self.services.markers, "write", hold))

    def release_markers(self):
        def release():
            del self.services.markers.write
            held, self.held = self.held, []
            for one in held:
                self.services.markers.write(*one)

        self.do(release)


@pytest.fixture
def start():
    """Starts a broker with settings; returns access to its inside and a client."""
    running = []

    def started(config=None):
        broker = Broker(config=config or {}, topics={"t": 2, "u": 1}).start()
        client = TransactionalClient(broker.bootstrap_servers)
        running.append((broker, client))
        return Held(broker), client

    yield started
    for broker, client in running:
        client.sock.close()
        broker.stop()


def in_thread(action):
    """Runs a blocking request; its result is in the list that ``join`` returns."""
    results = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()

    def join():
        thread.join(20)
        assert results, "no response"
        return results[0]

    return thread, join


# --- the end of the previous transaction is not written yet


def test_a_batch_of_the_next_transaction_waits_for_the_end_of_the_last(start):
    inside, client = start(SLOW)
    producer = client.start("tx")
    client.put("tx", producer, "t", b"a", version=12)
    inside.hold_markers()
    _, *following = client.end("tx", producer, True, version=5)
    thread, join = in_thread(lambda: client.put("tx", following, "t", b"b", version=12))
    wait_until(lambda: inside.held)
    assert thread.is_alive()
    inside.release_markers()
    assert join() is NONE
    assert client.end("tx", following, True, version=5)[0] is NONE
    values = [r.value for r in records_in(client.partition_of("t").records)]
    assert (values[0], values[2]) == (b"a", b"b")


def test_a_batch_that_waits_for_the_last_transaction_tries_again_at_its_interval(start):
    inside, client = start(SLOW | {"add.partitions.to.txn.retry.backoff.ms": 400})
    producer = client.start("tx")
    client.put("tx", producer, "t", b"a", version=12)
    inside.hold_markers()
    _, *following = client.end("tx", producer, True, version=5)
    wait_until(lambda: inside.held)
    request = m.ProduceRequest
    batch = transactional_batch(following, 0, b"b")
    partition = request.PartitionProduceData(index=0, records=batch)
    topic = request.TopicProduceData(name="t", partition_data=[partition])
    started = time.monotonic()
    client.post(
        ApiKey.PRODUCE,
        12,
        request(transactional_id="tx", acks=-1, timeout_ms=10_000, topic_data=[topic]),
    )
    inside.do(lambda: None)  # runs after the broker has read the batch
    inside.release_markers()
    answer = client.answer(ApiKey.PRODUCE, 12).responses[0].partition_responses[0]
    assert answer.error_code == NONE
    assert time.monotonic() - started >= 0.4


def test_offsets_of_the_next_transaction_wait_too(start):
    inside, client = start(SLOW)
    client.find("group", kind=0)
    producer = client.start("tx")
    client.put("tx", producer, "t", b"a", version=12)
    inside.hold_markers()
    _, *following = client.end("tx", producer, True, version=5)
    _, join = in_thread(lambda: client.commit_offsets("tx", "group", following, "t", 3, version=5))
    inside.release_markers()
    assert join() is NONE


def test_a_client_that_must_wait_too_long_gets_a_retriable_error(start):
    inside, client = start(QUICK)
    client.find("group", kind=0)
    producer = client.start("tx")
    client.put("tx", producer, "t", b"a", version=12)
    inside.hold_markers()
    _, *following = client.end("tx", producer, True, version=5)
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.put("tx", following, "t", b"b", version=12) is concurrent
    commit = client.commit_offsets("tx", "group", following, "t", 3, version=5)
    assert commit is concurrent
    # First-generation clients get an error that they know.
    assert client.put("tx", following, "t", b"b", version=11) is ErrorCode.NOT_ENOUGH_REPLICAS
    commit = client.commit_offsets("tx", "group", following, "t", 3, version=3)
    assert commit is ErrorCode.COORDINATOR_NOT_AVAILABLE
    inside.release_markers()
    assert client.partition_of("t").high_watermark == 2


def test_a_batch_does_not_overtake_an_earlier_one_that_is_retried(start):
    inside, client = start(QUICK)
    producer = client.start("tx")
    client.add("tx", producer, "u", 0)
    client.put("tx", producer, "u", b"a")
    inside.hold_markers()
    client.end("tx", producer, True)
    # A partition that does not know the producer yet accepts any first sequence.
    assert client.put("tx", producer, "t", b"0", sequence=0) is ErrorCode.NOT_ENOUGH_REPLICAS
    inside.release_markers()
    client.add("tx", producer, "t", 0)
    behind = client.put("tx", producer, "t", b"1", sequence=1)
    assert behind is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.put("tx", producer, "t", b"0", sequence=0) is NONE
    assert client.put("tx", producer, "t", b"1", sequence=1) is NONE
    assert client.end("tx", producer, True) is NONE


def verify_slowly(inside):
    """Two events: the coordinator was asked about a partition, and it may respond."""
    asked, go_on = threading.Event(), threading.Event()

    def slow_verify(name, who, partitions, *, adds):
        async def later():
            asked.set()
            await asyncio.to_thread(go_on.wait, 40)
            return dict.fromkeys(partitions, NONE)  # this was true when the broker asked

        return later()

    inside.do(lambda: setattr(inside.services.transactions, "verify_or_add", slow_verify))
    return asked, go_on


def test_a_batch_whose_transaction_ended_during_verification_is_refused(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    asked, go_on = verify_slowly(inside)
    _, join = in_thread(lambda: client.put("tx", producer, "t", b"late"))
    assert asked.wait(20)
    with TransactionalClient(f"127.0.0.1:{client.sock.getpeername()[1]}") as other:
        assert other.end("tx", producer, True) is NONE
        go_on.set()
        assert join() is ErrorCode.INVALID_TXN_STATE
        assert other.last_stable_offset("t") == 1
        assert other.producers("t").active_producers[0].current_txn_start_offset == -1


def test_offsets_whose_transaction_ended_during_verification_are_refused(start):
    inside, client = start()
    client.find("group", kind=0)
    producer = client.start("tx")
    assert client.add_offsets("tx", producer, "group") is NONE
    asked, go_on = verify_slowly(inside)
    _, join = in_thread(lambda: client.commit_offsets("tx", "group", producer, "t", 3))
    assert asked.wait(20)
    with TransactionalClient(f"127.0.0.1:{client.sock.getpeername()[1]}") as other:
        assert other.end("tx", producer, True) is NONE
        wait_until(lambda: other.state("tx") == "CompleteCommit")
        go_on.set()
        assert join() is ErrorCode.INVALID_TXN_STATE
        assert other.committed_offset("group", "t", require_stable=True) == (-1, NONE)


# --- followers that lag


def test_a_transaction_is_complete_once_the_followers_have_its_markers(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0, 1)
    client.put("tx", producer, "t", b"a")
    client.put("tx", producer, "t", b"b", partition=1)
    inside.lag("t", 1)
    assert client.end("tx", producer, True) is NONE  # decided
    assert client.state("tx") == "PrepareCommit"
    assert client.last_stable_offset("t", 1) == 0
    assert client.end("tx", producer, True) is ErrorCode.CONCURRENT_TRANSACTIONS
    inside.catch_up("t", 1)
    wait_until(lambda: client.state("tx") == "CompleteCommit")
    assert client.last_stable_offset("t", 1) == 2


def test_a_partition_without_readers_forgets_ended_transactions(start):
    inside, client = start()
    producers = inside.replica("t").log.producers
    producer = client.start("tx")
    for sequence in range(3):
        client.add("tx", producer, "t", 0)
        assert client.put("tx", producer, "t", b"a", sequence=sequence) is NONE
        assert client.end("tx", producer, True) is NONE
        assert (producers.ongoing, producers.unreplicated) == ({}, {})


def test_a_marker_is_written_again_if_the_leader_is_replaced_meanwhile(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    client.put("tx", producer, "t", b"a")
    inside.lag("t")
    client.end("tx", producer, True)
    inside.do(lambda: lose_leadership(inside.services, "t"))
    inside.do(lambda: regain_leadership(inside.services, "t"))
    wait_until(lambda: client.state("tx") == "CompleteCommit")
    assert client.last_stable_offset("t") == client.partition_of("t").high_watermark


@pytest.fixture
def uncommitted_marker(start):
    """A WriteTxnMarkers request that waits for a follower."""
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    client.put("tx", producer, "t", b"a")
    inside.lag("t")
    thread, join = in_thread(lambda: client.mark(producer, True, "t", 0))
    wait_until(lambda: inside.do(lambda: inside.replica("t").log.log_end) == 2)
    assert thread.is_alive()
    return inside, join


def test_a_marker_of_another_coordinator_waits_for_followers(uncommitted_marker):
    inside, join = uncommitted_marker
    inside.catch_up("t")
    assert join() == [NONE]


def test_a_marker_of_another_coordinator_is_refused_at_once_if_leadership_is_lost(
    uncommitted_marker,
):
    inside, join = uncommitted_marker
    inside.do(lambda: lose_leadership(inside.services, "t"))
    assert join() == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_marker_of_another_coordinator_is_refused_at_once_if_the_disk_fails(uncommitted_marker):
    inside, join = uncommitted_marker
    inside.services.logs.directories[0].take_offline("it broke")
    assert join() == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_marker_of_another_coordinator_is_refused_at_once_if_the_topic_is_deleted(
    uncommitted_marker,
):
    inside, join = uncommitted_marker
    inside.run(inside.services.controller.delete_topics(["t"]))
    assert join() == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_markers_of_offsets_wait_for_followers_too(start):
    inside, client = start()
    client.find("group", kind=0)
    partition = inside.do(lambda: inside.services.groups.partition_of("group"))
    producer = client.start("tx")
    client.add_offsets("tx", producer, "group")
    assert client.commit_offsets("tx", "group", producer, "t", 5) is NONE
    inside.lag("__consumer_offsets", partition)
    assert client.end("tx", producer, True) is NONE
    assert client.state("tx") == "PrepareCommit"
    inside.catch_up("__consumer_offsets", partition)
    wait_until(lambda: client.state("tx") == "CompleteCommit")
    assert client.committed_offset("group", "t", require_stable=True) == (5, NONE)


def test_an_end_is_answered_once_its_record_is_committed(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    client.put("tx", producer, "t", b"a")
    partition = inside.do(lambda: inside.services.transactions.partition_of("tx"))
    inside.lag("__transaction_state", partition)
    log = inside.replica("__transaction_state", partition).log
    end = log.log_end
    thread, join = in_thread(lambda: client.end("tx", producer, True))
    wait_until(lambda: log.log_end > end)
    assert thread.is_alive()
    with TransactionalClient(f"127.0.0.1:{client.sock.getpeername()[1]}") as other:
        assert (
            other.last_stable_offset("t") == 0
        )  # no marker is written before the decision is committed
    inside.catch_up("__transaction_state", partition)
    assert join() is NONE
    wait_until(lambda: client.state("tx") == "CompleteCommit")


def test_a_partition_without_enough_replicas_gets_its_marker_later(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    client.put("tx", producer, "t", b"a")
    inside.in_sync("t", isr=(1,), replicas=(1, 2), min_isr=2)
    assert client.end("tx", producer, False) is NONE
    assert client.state("tx") == "PrepareAbort"
    inside.in_sync("t", isr=(1,), replicas=(1,), min_isr=1)
    wait_until(lambda: client.state("tx") == "CompleteAbort")
    assert client.last_stable_offset("t") == 2


def test_a_producer_id_that_cannot_be_reserved_does_not_stop_the_broker(start):
    inside, client = start()
    producer_id, _ = client.start("tx")

    async def refuse():
        raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    def draw_in_vain():
        inside.services.producer_ids.next = refuse
        inside.services.transactions.carry_out_effect(0, DrawProducerId())

    inside.do(draw_in_vain)
    assert client.start("tx") == (producer_id, 1)


# --- leaderships that move


def test_a_transactional_batch_for_another_leader_is_not_verified_here(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    inside.do(lambda: lose_leadership(inside.services, "t"))
    for version in (11, 12):
        answered = client.put("tx", producer, "t", b"a", version=version)
        assert answered is ErrorCode.NOT_LEADER_OR_FOLLOWER


def put_and_wait_for_verification(start):
    """A batch of a transaction, until its coordinator is asked; ``join`` gives its error code."""
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    asked, go_on = verify_slowly(inside)
    _, join = in_thread(lambda: client.put("tx", producer, "t", b"a"))
    assert asked.wait(20)
    return inside, join, go_on


def test_a_batch_whose_partition_gets_another_leader_during_verification_is_sent_there(start):
    inside, join, go_on = put_and_wait_for_verification(start)
    inside.do(lambda: lose_leadership(inside.services, "t"))
    assert join() is ErrorCode.NOT_LEADER_OR_FOLLOWER  # before the coordinator has answered
    go_on.set()


def test_a_partition_that_is_lost_and_regained_during_verification_is_refused(start):
    inside, join, go_on = put_and_wait_for_verification(start)

    def lose_and_regain():
        lose_leadership(inside.services, "t")
        regain_leadership(inside.services, "t")

    inside.do(lose_and_regain)
    assert join() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    go_on.set()
    assert inside.do(lambda: inside.replica("t").log.log_end) == 0


def test_a_batch_whose_disk_fails_during_verification_is_refused_at_once(start):
    inside, join, go_on = put_and_wait_for_verification(start)
    inside.services.logs.directories[0].take_offline("it broke")
    assert join() is ErrorCode.KAFKA_STORAGE_ERROR
    go_on.set()


def test_a_batch_whose_topic_is_deleted_during_verification_is_refused_at_once(start):
    inside, join, go_on = put_and_wait_for_verification(start)
    inside.run(inside.services.controller.delete_topics(["t"]))
    assert join() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    go_on.set()


def test_a_lost_partition_does_not_end_the_verification_of_another(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0, 1)
    asked, go_on = verify_slowly(inside)
    request = m.ProduceRequest
    data = [
        request.PartitionProduceData(index=number, records=transactional_batch(producer, 0, b"a"))
        for number in (0, 1)
    ]
    topic = request.TopicProduceData(name="t", partition_data=data)
    both = request(transactional_id="tx", acks=-1, timeout_ms=20_000, topic_data=[topic])
    _, join = in_thread(lambda: client.ask(ApiKey.PRODUCE, 11, both))
    assert asked.wait(20)
    inside.do(lambda: lose_leadership(inside.services, "t", 0))
    go_on.set()
    (answered,) = join().responses
    assert [one.error_code for one in answered.partition_responses] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        NONE,
    ]


def test_offsets_whose_partition_is_lost_during_verification_are_refused_at_once(start):
    inside, client = start()
    client.find("group", kind=0)
    producer = client.start("tx")
    assert client.add_offsets("tx", producer, "group") is NONE
    partition = inside.do(lambda: inside.services.groups.partition_of("group"))
    asked, go_on = verify_slowly(inside)
    _, join = in_thread(lambda: client.commit_offsets("tx", "group", producer, "t", 3))
    assert asked.wait(20)
    inside.do(lambda: lose_leadership(inside.services, "__consumer_offsets", partition))
    assert join() is ErrorCode.NOT_COORDINATOR
    go_on.set()


def test_offsets_for_another_group_coordinator_are_not_verified_here(start):
    inside, client = start()
    client.find("group", kind=0)
    producer = client.start("tx")
    assert client.add_offsets("tx", producer, "group") is NONE
    partition = inside.do(lambda: inside.services.groups.partition_of("group"))
    asked, _ = verify_slowly(inside)
    inside.do(lambda: lose_leadership(inside.services, "__consumer_offsets", partition))
    for version in (3, 5):
        answered = client.commit_offsets("tx", "group", producer, "t", 5, version=version)
        assert answered is ErrorCode.NOT_COORDINATOR
    assert not asked.is_set()


def test_a_bumped_leader_epoch_of_the_coordinator_does_not_disturb_a_transaction(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    assert client.put("tx", producer, "t", b"a") is NONE
    partition = inside.do(lambda: inside.services.transactions.partition_of("tx"))
    inside.catch_up("__transaction_state", partition)  # a new decision, and the leader stays
    leader_epoch = inside.replica("__transaction_state", partition).partition.leader_epoch
    assert leader_epoch > 0
    assert client.add("tx", producer, "t", 1) is NONE
    assert client.end("tx", producer, True) is NONE
    wait_until(lambda: client.state("tx") == "CompleteCommit")
    assert client.producers("t").active_producers[0].coordinator_epoch == leader_epoch


def test_the_next_coordinator_continues_an_open_transaction(start):
    inside, client = start()
    producer = client.start("tx")
    client.add("tx", producer, "t", 0)
    assert client.put("tx", producer, "t", b"a") is NONE
    partition = inside.do(lambda: inside.services.transactions.partition_of("tx"))
    for move in (lose_leadership, regain_leadership):
        inside.do(lambda: move(inside.services, "__transaction_state", partition))  # noqa: B023
    wait_until(lambda: client.end("tx", producer, True) is NONE)
    wait_until(lambda: client.state("tx") == "CompleteCommit")
    assert client.last_stable_offset("t") == 2
