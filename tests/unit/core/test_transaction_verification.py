"""Which batches the transaction coordinator must verify, and what its answer means for them."""

import pytest

from headrace.core.producer_state import EndMarker, Origin, Producers
from headrace.core.transaction_verification import (
    RETRIED,
    Verification,
    is_transactional,
    refusal_of,
    transactional_producer,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from headrace.records.record import Record, build_batch

NOW = 1_000_000
PRODUCER = (7, 3)
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
NONE = ErrorCode.NONE


def batch(sequence=0, producer=PRODUCER, *, transactional=True):
    return memoryview(
        build_batch(
            [Record(0, NOW, None, b"v")],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=transactional,
        )
    )


class Request:
    """A produce request with one batch for each partition of ``batches``."""

    def __init__(self, batches, *, adds=False, transactional_id="x", postponed=None):
        self.batches = batches
        self.producers = {partition: Producers() for partition in batches}
        self.postponed = {} if postponed is None else postponed
        self._adds = adds
        self._transactional_id = transactional_id
        self.begin()

    def begin(self):
        self.rules = Verification(
            self._transactional_id,
            [(place, self.producers[place], data) for place, data in self.batches.items()],
            self.postponed,
            adds=self._adds,
            abortable=True,
        )
        return self.rules

    def append(self, place=HERE):
        """Begin the transaction in a partition."""
        header = BatchHeader(0, 99, 0, 2, 0, TRANSACTIONAL, 0, NOW, NOW, *PRODUCER, 0, 1)
        self.producers[place].append(header, 0, NOW, Origin.CLIENT)

    def end(self, place=HERE):
        attributes = TRANSACTIONAL | CONTROL
        header = BatchHeader(0, 78, 0, 2, 0, attributes, 0, NOW, NOW, *PRODUCER, -1, 1)
        marker = EndMarker(True, 0, NOW)
        self.producers[place].append(header, 1, NOW, Origin.COORDINATOR, marker)

    def answer(self, codes, place=HERE):
        refusal = self.rules.refusal(place, self.producers[place], self.batches[place], codes)
        return NONE if refusal is None else refusal.code


def test_only_transactional_batches_of_the_current_format_have_a_producer():
    assert transactional_producer(batch()) == PRODUCER
    assert transactional_producer(batch(transactional=False)) is None
    assert not is_transactional(batch()[:20])
    old = bytearray(batch())
    old[16] = 1
    assert not is_transactional(memoryview(old))


def test_a_partition_is_verified_until_it_knows_the_transaction():
    request = Request({HERE: batch(), THERE: batch()})
    assert (request.rules.partitions, request.rules.producer) == ([HERE, THERE], PRODUCER)
    request.append(HERE)
    assert request.begin().partitions == [THERE]


def test_a_request_without_a_transactional_id_may_not_write_to_a_transaction():
    request = Request({HERE: batch(), THERE: batch(transactional=False)}, transactional_id=None)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert request.rules.refused == {HERE: refused, THERE: refused}
    assert request.rules.partitions == []
    assert request.answer(request.rules.refused) is refused


def test_a_request_has_the_batches_of_one_producer():
    request = Request({HERE: batch(), THERE: batch(producer=(8, 0))})
    assert request.rules.partitions == []
    assert request.answer(request.rules.refused) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_batches_outside_of_transactions_need_no_verification():
    request = Request({HERE: batch(transactional=False)})
    assert (request.rules.partitions, request.rules.refused) == ([], {})
    assert request.answer({}) is NONE


def test_a_verified_batch_is_refused_if_its_transaction_ended_meanwhile():
    request = Request({HERE: batch()})
    assert request.answer({HERE: NONE}) is NONE
    request.end()
    assert request.answer({HERE: NONE}) is ErrorCode.INVALID_TXN_STATE


def test_the_epoch_of_the_marker_fences_a_second_generation_batch():
    request = Request({HERE: batch()}, adds=True)
    request.end()
    assert request.answer({HERE: NONE}) is NONE


def test_a_batch_that_was_opened_for_too_long_is_refused():
    request = Request({HERE: batch()})
    request.append()
    request.begin()
    assert request.answer({}) is NONE
    request.end()
    assert request.answer({}) is ErrorCode.INVALID_TXN_STATE


def test_no_batch_overtakes_a_postponed_one():
    first = Request({HERE: batch(sequence=0)})
    assert first.answer({HERE: ErrorCode.NOT_COORDINATOR}) is ErrorCode.NOT_ENOUGH_REPLICAS
    later = Request({HERE: batch(sequence=1)}, postponed=first.postponed)
    assert later.answer({HERE: NONE}) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert first.answer({HERE: NONE}) is NONE
    assert first.postponed == {}


def test_the_first_sequence_of_a_second_generation_transaction_is_zero():
    gap = Request({HERE: batch(sequence=5)}, adds=True)
    assert gap.answer({HERE: NONE}) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("code", sorted(RETRIED))
def test_clients_retry_what_the_coordinator_may_answer_otherwise_soon(code):
    verified = refusal_of(code, adds=False, abortable=True, retriable=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert verified.code is ErrorCode.NOT_ENOUGH_REPLICAS
    added = refusal_of(code, adds=True, abortable=True, retriable=ErrorCode.NOT_ENOUGH_REPLICAS)
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert added.code is (concurrent if code is concurrent else ErrorCode.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize(
    ("code", "abortable", "expected"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, True, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, False, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.PRODUCER_FENCED, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, True, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_refusal_has_a_code_that_the_client_knows(code, abortable, expected):
    retriable = ErrorCode.NOT_ENOUGH_REPLICAS
    assert refusal_of(code, adds=False, abortable=abortable, retriable=retriable).code is expected
