"""Transaction requests: Kafka 4.3.1's error codes, and refused requests change nothing."""

import itertools
import time

import pytest

from headrace.model.errors import ErrorCode
from headrace.records.record import marker_type
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import decode_versioned
from tests.fakes.transactional_client import TransactionalClient, records_in
from tests.fakes.waiting import wait_until

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
INVALID = ErrorCode.INVALID_TXN_STATE
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE

_numbers = itertools.count(1)


@pytest.fixture
def client(headrace_broker):
    with TransactionalClient(headrace_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def name():
    return f"wire-{next(_numbers)}"


def wait_for(condition, what, limit_s=20):
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.01)


# --- the first version of the protocol


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_added_partitions_are_written_and_committed(client, headrace_topic, name, version):
    producer = client.start(name, version=version)
    assert client.add(name, producer, headrace_topic, 0, version=version) is NONE
    assert client.put(name, producer, headrace_topic, b"a", b"b") is NONE
    assert client.last_stable_offset(headrace_topic) == 0
    assert client.partition_of(headrace_topic).records in (None, b"")
    assert client.end(name, producer, True, version=version) is NONE
    found = client.partition_of(headrace_topic)
    assert (found.high_watermark, found.last_stable_offset) == (3, 3)
    first, second, marker = records_in(found.records)
    assert (first.value, second.value, marker_type(marker.key)) == (b"a", b"b", 1)
    assert found.aborted_transactions == []


def test_read_committed_fetches_list_the_aborted_transactions(client, headrace_topic, name):
    producer = client.start(name)
    client.add(name, producer, headrace_topic, 0)
    client.put(name, producer, headrace_topic, b"a")
    assert client.end(name, producer, False) is NONE
    found = client.partition_of(headrace_topic)
    assert found.last_stable_offset == 2
    (aborted,) = found.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (producer[0], 0)
    assert client.partition_of(headrace_topic, committed=False).aborted_transactions is None


def test_a_fetch_lists_only_the_aborted_transactions_of_its_records(client, headrace_topic, name):
    for number in range(5):
        one = f"{name}-{number}"
        producer = client.start(one)
        assert client.add(one, producer, headrace_topic, 0) is NONE
        assert client.put(one, producer, headrace_topic, b"a") is NONE
        assert client.end(one, producer, False) is NONE
        end = 2 * number + 2
        wait_for(lambda end=end: client.last_stable_offset(headrace_topic) == end, "no marker")
    for offset in range(10):
        piece = client.partition_of(headrace_topic, offset=offset, max_bytes=1)
        first_offsets = [one.first_offset for one in piece.aborted_transactions]
        assert first_offsets == [offset - offset % 2]


def test_sequences_continue_from_one_transaction_to_the_next(client, headrace_topic, name):
    producer = client.start(name)
    for number, commit in enumerate((True, False, True)):
        client.add(name, producer, headrace_topic, 0)
        put = client.put(name, producer, headrace_topic, b"x", sequence=number)
        assert put is NONE
        assert client.end(name, producer, commit) is NONE
    assert client.last_stable_offset(headrace_topic) == 6


@pytest.mark.parametrize(("version", "code"), [(3, INVALID), (10, INVALID), (11, ABORTABLE)])
def test_a_partition_that_was_not_added_is_not_written(client, headrace_topic, name, version, code):
    producer = client.start(name)
    assert client.put(name, producer, headrace_topic, b"a", version=version) is code
    assert client.partition_of(headrace_topic).high_watermark == 0
    assert client.producers(headrace_topic).active_producers == []


def test_a_batch_after_the_end_does_not_open_a_transaction(client, headrace_topic, name):
    producer = client.start(name)
    client.add(name, producer, headrace_topic, 0)
    client.put(name, producer, headrace_topic, b"a")
    client.end(name, producer, True)
    assert client.put(name, producer, headrace_topic, b"late", sequence=1) is ABORTABLE
    assert client.last_stable_offset(headrace_topic) == 2


def test_partitions_are_added_and_verified_for_several_transactions_at_once(
    client, headrace_topic, name
):
    producer = client.start(name)
    other = name + "-other"
    answer = client.add_many(
        (name, producer, headrace_topic, [0]), (other, producer, headrace_topic, [0])
    )
    assert answer == {name: [NONE], other: [MAPPING]}
    answer = client.add_many((name, producer, headrace_topic, [0]), verify_only=True, version=4)
    assert answer == {name: [NONE]}
    stale = (producer[0], producer[1] - 1)
    answer = client.add_many((name, stale, headrace_topic, [0]), verify_only=True)
    assert answer == {name: [FENCED]}


def test_no_partition_is_added_if_one_cannot_be_added(client, headrace_topic, name):
    producer = client.start(name)
    assert client.add(name, producer, headrace_topic, 0, 7) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    refused = client.add(name, producer, "__consumer_offsets", 0)
    assert refused is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert client.add("", producer, headrace_topic, 0) is ErrorCode.INVALID_REQUEST
    assert client.state(name) == "Empty"


# --- the second version of the protocol (KIP-890)


@pytest.fixture
def topic_id(client, headrace_topic):
    request = m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name=headrace_topic)]
    )
    return client.ask(ApiKey.METADATA, 12, request).topics[0].topic_id


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("commit", [True, False])
def test_a_produced_batch_adds_its_partition_and_the_end_returns_the_next_epoch(
    client, headrace_topic, topic_id, name, version, commit
):
    topic = headrace_topic if version == 12 else topic_id
    producer = client.start(name)
    for number in range(3):
        assert client.put(name, producer, topic, b"%d" % number, version=version) is NONE
        sent = client.put(name, producer, topic, b"more", sequence=1, version=version)
        assert sent is NONE
        assert client.state(name) == "Ongoing"
        code, *following = client.end(name, producer, commit, version=5)
        assert (code, following) == (NONE, [producer[0], producer[1] + 1])
        producer = tuple(following)
    assert client.last_stable_offset(headrace_topic) == 9


def test_neither_a_late_batch_nor_a_late_end_affects_the_next_transaction(
    client, headrace_topic, name
):
    old = client.start(name)
    client.put(name, old, headrace_topic, b"a", version=12)
    _, *following = client.end(name, old, True, version=5)
    assert client.put(name, old, headrace_topic, b"late", sequence=1, version=12) is EPOCH
    client.put(name, following, headrace_topic, b"b", version=12)
    for commit in (True, False):
        assert client.end(name, old, commit, version=5)[0] is FENCED
        assert client.end(name, old, commit, version=3) is FENCED
    assert client.put(name, old, headrace_topic, b"late", sequence=1, version=12) is EPOCH
    assert client.mark(old, False, headrace_topic, 0, transaction_version=2) == [EPOCH]
    assert client.state(name) == "Ongoing"
    assert client.end(name, following, True, version=5)[0] is NONE
    values = [r.value for r in records_in(client.partition_of(headrace_topic).records)]
    assert b"late" not in values


def test_a_repeated_end_gets_the_same_answer(client, headrace_topic, name):
    producer = client.start(name)
    client.put(name, producer, headrace_topic, b"a", version=12)
    first = client.end(name, producer, True, version=5)
    assert client.end(name, producer, True, version=5) == first
    assert client.end(name, producer, False, version=5)[0] is INVALID
    assert client.partition_of(headrace_topic).high_watermark == 2


def test_the_first_batch_of_an_epoch_begins_with_sequence_0(client, headrace_topic, name):
    producer = client.start(name)
    put = client.put(name, producer, headrace_topic, b"a", sequence=3, version=12)
    assert put is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.partition_of(headrace_topic).high_watermark == 0


def test_sequences_wrap_from_the_largest_to_0(client, headrace_topic, name):
    """Only a partition that has forgotten the producer accepts such a high first sequence."""
    producer = client.start(name)
    client.add(name, producer, headrace_topic, 0)
    last = 2**31 - 1
    assert client.put(name, producer, headrace_topic, b"a", b"b", sequence=last - 1) is NONE
    again = client.put(name, producer, headrace_topic, b"x", sequence=last)
    assert again is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.put(name, producer, headrace_topic, b"c", sequence=0) is NONE
    assert client.put(name, producer, headrace_topic, b"c", sequence=0) is NONE  # a duplicate
    assert client.end(name, producer, True) is NONE
    assert client.partition_of(headrace_topic).high_watermark == 4


# --- offsets inside of transactions


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_once_the_transaction_is_committed(client, headrace_topic, name, commit):
    group = name + "-group"
    client.find(group, kind=0)
    producer = client.start(name)
    assert client.add_offsets(name, producer, group) is NONE
    assert client.commit_offsets(name, group, producer, headrace_topic, 42) is NONE
    assert client.committed_offset(group, headrace_topic) == (-1, NONE)
    unstable = client.committed_offset(group, headrace_topic, require_stable=True)
    assert unstable == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert client.end(name, producer, commit) is NONE
    expected = 42 if commit else -1
    assert client.committed_offset(group, headrace_topic, require_stable=True) == (expected, NONE)


def test_offsets_are_added_automatically_in_the_second_version(client, headrace_topic, name):
    group = name + "-group"
    client.find(group, kind=0)
    producer = client.start(name)
    for version, code in [(3, INVALID), (4, ABORTABLE), (5, NONE)]:
        answer = client.commit_offsets(name, group, producer, headrace_topic, 7, version=version)
        assert answer is code
    code, *_ = client.end(name, producer, True, version=5)
    assert code is NONE
    assert client.committed_offset(group, headrace_topic) == (7, NONE)


def test_offsets_of_zombies_and_unknown_members_are_refused(client, headrace_topic, name):
    group = name + "-group"
    client.find(group, kind=0)
    old = client.start(name)
    producer = client.start(name)
    stranger = (producer[0] + 1_000_000, 0)
    for version in (3, 5):
        for who, code in [(old, EPOCH), (stranger, MAPPING)]:
            answer = client.commit_offsets(name, group, who, headrace_topic, 1, version=version)
            assert answer is code
    assert client.add_offsets(name, old, group) is FENCED
    assert client.add_offsets(name, old, group, version=1) is EPOCH
    assert client.add_offsets(name, stranger, group) is MAPPING
    refused = client.commit_offsets(
        name, group, producer, headrace_topic, 1, version=5, generation_id=3, member_id="unknown"
    )
    assert refused in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    empty = client.commit_offsets(name, "", producer, headrace_topic, 1, version=5)
    assert empty is ErrorCode.INVALID_GROUP_ID
    unknown = client.commit_offsets(name, group, producer, "no-such-topic", 1, version=5)
    assert unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.committed_offset(group, headrace_topic) == (-1, NONE)


# --- producer identities


@pytest.mark.parametrize(("version", "code"), [(0, EPOCH), (1, EPOCH), (2, FENCED), (5, FENCED)])
def test_a_zombie_cannot_end_the_transaction_of_its_successor(
    client, headrace_topic, name, version, code
):
    old = client.start(name)
    producer = client.start(name)
    client.add(name, producer, headrace_topic, 0)
    client.put(name, producer, headrace_topic, b"a")
    answer = client.end(name, old, False, version=version)
    assert (answer[0] if version == 5 else answer) is code
    assert client.add(name, old, headrace_topic, 0, version=min(version, 3)) is code
    assert client.put(name, old, headrace_topic, b"zombie") is EPOCH
    assert client.state(name) == "Ongoing"
    assert client.end(name, producer, True) is NONE


def test_a_second_instance_aborts_the_transaction_of_the_first(client, headrace_topic, name):
    first = client.start(name)
    client.add(name, first, headrace_topic, 0)
    client.put(name, first, headrace_topic, b"first")
    second = client.start(name)
    assert second[0] == first[0] and second[1] > first[1]
    found = client.partition_of(headrace_topic)
    assert found.last_stable_offset == 2
    assert [one.producer_id for one in found.aborted_transactions] == [first[0]]
    assert client.put(name, first, headrace_topic, b"zombie", sequence=1) is EPOCH


@pytest.mark.parametrize(("version", "code"), [(3, EPOCH), (4, FENCED)])
def test_continuing_with_an_old_epoch_is_refused(client, name, version, code):
    old = client.start(name)
    client.start(name)
    assert client.init(name, expected=old, version=version) == (code, -1, -1)
    for half in ((old[0], -1), (-2, -1), (-1, -2)):
        refused = client.init(name, expected=half, version=version)
        assert refused == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert client.init(name, expected=(-2, -2), version=version) == (code, -1, -1)


def test_a_producer_without_transactions_sends_both_id_and_epoch_or_neither(client):
    assert client.init(None)[0] is NONE
    assert client.init(None, expected=(5, 0))[0] is NONE
    for half in ((5, -1), (-1, 0), (-2, -1)):
        assert client.init(None, expected=half) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_invalid_ids_and_timeouts_are_refused(client, name):
    client.find(name)
    assert client.init("") == (ErrorCode.INVALID_REQUEST, -1, -1)
    for timeout_ms in (0, -1, 900_001):
        refused = client.init(name, timeout_ms=timeout_ms)
        assert refused == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)
    assert client.describe(name)[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert client.end("", (1, 1), True) is ErrorCode.INVALID_REQUEST
    assert client.end(name, (1, 1), True) is MAPPING


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_transaction_that_never_began_cannot_end(client, name, version):
    producer = client.start(name)
    for commit in (True, False):
        assert client.end(name, producer, commit, version=version) is INVALID
    assert client.state(name) == "Empty"


def test_ids_may_be_as_long_as_a_record_allows(client):
    long = "i" * 10_000
    producer = client.start(long)
    assert client.state(long) == "Empty"
    assert client.end(long, producer, False, version=5)[0] is NONE
    longest = "é" * 16_384  # one byte too long
    assert client.init(longest) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_a_deleted_topic_does_not_delay_the_end(client, headrace_broker, name):
    headrace_broker.create_topics([f"{name}-gone", f"{name}-here"])
    producer = client.start(name)
    for topic in (f"{name}-gone", f"{name}-here"):
        assert client.put(name, producer, topic, b"a", version=12) is NONE
    request = m.DeleteTopicsRequest(topic_names=[f"{name}-gone"], timeout_ms=5_000)
    client.ask(ApiKey.DELETE_TOPICS, 5, request)
    assert client.end(name, producer, True, version=5)[0] is NONE
    # The marker is given up once the cluster's state shows that the topic is gone.
    wait_until(lambda: client.state(name) == "CompleteCommit")
    assert client.last_stable_offset(f"{name}-here") == 2


def test_a_transactional_batch_needs_a_transactional_id(client, headrace_topic, name):
    producer = client.start(name)
    for version in (3, 11, 12):
        put = client.put(None, producer, headrace_topic, b"a", version=version)
        assert put is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    other = client.put(name + "x", producer, headrace_topic, b"a", version=12)
    assert other is MAPPING
    assert client.partition_of(headrace_topic).high_watermark == 0


def test_one_request_finds_the_coordinators_of_many_ids(client):
    assert client.find("one", "two", "", kind=1) == [NONE, NONE, NONE]


# --- time


@pytest.mark.parametrize("version", [11, 12])
def test_a_transaction_is_aborted_after_its_timeout(client, headrace_topic, name, version):
    producer = client.start(name, timeout_ms=200)
    if version < 12:
        client.add(name, producer, headrace_topic, 0)
    client.put(name, producer, headrace_topic, b"a", version=version)
    wait_for(lambda: client.last_stable_offset(headrace_topic) == 2, "the abort")
    assert client.state(name) == "CompleteAbort"
    put = client.put(name, producer, headrace_topic, b"b", sequence=1, version=version)
    assert put is EPOCH
    assert client.end(name, producer, True) is FENCED


def test_an_idle_transactional_id_is_forgotten():
    config = {
        "transactional.id.expiration.ms": 300,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    }
    with Broker(config=config) as broker:
        with TransactionalClient(broker.bootstrap_servers) as client:
            first = client.start("idle")
            wait_for(lambda: not client.list().transaction_states, "the tombstone")
            assert client.end("idle", first, False) is MAPPING
        broker.restart()
        with TransactionalClient(broker.bootstrap_servers) as client:
            assert client.start("idle")[0] != first[0]


# --- administration


def test_transactions_are_listed_and_described(client, headrace_topic, name):
    producer = client.start(name)
    client.add(name, producer, headrace_topic, 0)
    listed = client.list(producer_id_filters=[producer[0]], state_filters=["Ongoing", "Bogus"])
    assert listed.unknown_state_filters == ["Bogus"]
    (found,) = listed.transaction_states
    assert (found.transactional_id, found.transaction_state) == (name, "Ongoing")
    assert client.list(transactional_id_pattern=name + "x").transaction_states == []
    bad = client.list(transactional_id_pattern="(")
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    described, missing, empty = client.describe(name, name + "x", "")
    assert (described.producer_id, described.producer_epoch) == producer
    assert [(t.topic, t.partitions) for t in described.topics] == [(headrace_topic, [0])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    client.end(name, producer, False)


def test_a_hanging_transaction_is_found_and_aborted():
    """Hanging transactions as old brokers left them: the coordinator does not know them."""
    config = {"transaction.partition.verification.enable": False}
    with (
        Broker(config=config, topics=["hung"]) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        producer = client.start("forgetful")
        assert client.put("forgetful", producer, "hung", b"a") is NONE
        assert client.state("forgetful") == "Empty"
        (found,) = client.producers("hung").active_producers
        assert (found.producer_id, found.producer_epoch) == producer
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (0, -1)
        assert client.last_stable_offset("hung") == 0
        assert client.mark(producer, False, "hung", 0) == [NONE]
        assert client.last_stable_offset("hung") == 2
        (found,) = client.producers("hung").active_producers
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 0)


def test_markers_are_refused_where_they_do_not_belong(client, headrace_topic, name):
    producer = client.start(name)
    client.add(name, producer, headrace_topic, 0)
    client.put(name, producer, headrace_topic, b"a")
    assert client.mark(producer, False, headrace_topic, 7) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    no_epoch = client.mark((producer[0], -1), False, headrace_topic, 0)
    assert no_epoch == [ErrorCode.UNKNOWN_SERVER_ERROR]
    equal = client.mark(producer, False, headrace_topic, 0, transaction_version=2)
    assert equal == [EPOCH]
    assert client.last_stable_offset(headrace_topic) == 0
    assert client.mark(producer, False, headrace_topic, 0, coordinator_epoch=9) == [NONE]
    older = client.mark(producer, False, headrace_topic, 0, coordinator_epoch=8)
    assert older == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]


def test_producers_are_described_or_the_reason_is_given(client, headrace_topic):
    assert client.producers(headrace_topic).active_producers == []
    missing = client.producers(headrace_topic, 3)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- the log, and restarts


def value_versions(client):
    """The version of every value in ``__transaction_state``, and its state."""
    found = []
    for partition in range(4):
        for record in records_in(
            client.partition_of("__transaction_state", partition, committed=False).records
        ):
            value = decode_versioned(m.TransactionLogValue, record.value)
            found.append((record.value[1], value.transaction_status))
    return found


def test_the_record_version_follows_the_feature_level(tmp_path):
    def set_level(client, level, kind):
        request = m.UpdateFeaturesRequest
        response = client.ask(
            ApiKey.UPDATE_FEATURES,
            1,
            request(
                timeout_ms=5_000,
                feature_updates=[
                    request.FeatureUpdateKey(
                        feature="transaction.version", max_version_level=level, upgrade_type=kind
                    )
                ],
            ),
        )
        assert response.error_code == 0, response.error_message

    with (
        Broker(data=tmp_path, topics=["t"]) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        producer = client.start("tx")
        set_level(client, 0, 2)
        client.add("tx", producer, "t", 0)
        client.put("tx", producer, "t", b"a")
        client.end("tx", producer, True)
        set_level(client, 1, 1)
        client.start("tx")
        assert value_versions(client) == [(1, 0), (0, 1), (0, 2), (0, 4), (1, 0)]


@pytest.mark.parametrize("ends", ["restart", "kill"])
def test_an_open_transaction_survives_a_restart(tmp_path, ends):
    with Broker(data=tmp_path, topics=["t"]) as broker:
        with TransactionalClient(broker.bootstrap_servers) as client:
            producer = client.start("tx")
            client.add("tx", producer, "t", 0)
            client.put("tx", producer, "t", b"before")
        if ends == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        with TransactionalClient(broker.bootstrap_servers) as client:
            wait_for(lambda: client.describe("tx")[0].error_code == 0, "the reload")
            assert client.state("tx") == "Ongoing"
            assert client.put("tx", producer, "t", b"after", sequence=1) is NONE
            assert client.end("tx", producer, True) is NONE
            values = [r.value for r in records_in(client.partition_of("t").records)][:2]
            assert values == [b"before", b"after"]
