"""A child process validates records, the broker itself a few of them, with the same result."""

import asyncio

import pytest

from headrace.model.errors import Rejected
from headrace.records.batch import GZIP, BadBatch, read_header
from headrace.records.record import Record, assemble, build_batch, validate_records
from headrace.storage.validation.record_validator import RecordValidator
from headrace.world.jobs import SystemJobs
from tests.fakes.standin import in_loop

KEYED = build_batch([Record(n, -1, b"key", b"value") for n in range(100)], codec=GZIP)
PARTLY = build_batch([Record(n, -1, None if n % 7 == 0 else b"k", b"v") for n in range(100)])
FEW = build_batch([Record(0, -1, None, b"v")])
GARBAGE = assemble(read_header(KEYED), b"no records at all")


@in_loop
async def test_the_child_finds_the_same_faults_as_the_function():
    validator = RecordValidator(SystemJobs())
    for batch in (KEYED, PARTLY, FEW, KEYED):
        for compacted in (True, False):
            found = await validator.check(batch, compacted=compacted)
            assert found == validate_records(batch, compacted=compacted)
    assert len(await validator.check(PARTLY, compacted=True)) == 15
    with pytest.raises(BadBatch, match="gzip"):
        await validator.check(GARBAGE, compacted=True)
    assert await validator.check(KEYED, compacted=True) == []
    await validator.close()


@in_loop
async def test_a_few_records_start_no_child():
    validator = RecordValidator(SystemJobs())
    assert len(await validator.check(FEW, compacted=True)) == 1
    assert validator.child is None


@in_loop
async def test_a_child_that_dies_costs_one_batch():
    validator = RecordValidator(SystemJobs())
    await validator.check(KEYED, compacted=True)
    await validator.child.kill()
    with pytest.raises(Rejected):
        await validator.check(KEYED, compacted=True)
    assert await validator.check(KEYED, compacted=True) == []
    await validator.close()


@in_loop
async def test_a_child_that_cannot_be_started_costs_one_batch(monkeypatch):
    async def refused(*_, **__):
        raise RuntimeError("can't start new thread")

    validator = RecordValidator(SystemJobs())
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", refused)
        with pytest.raises(Rejected):
            await validator.check(KEYED, compacted=True)
    assert await validator.check(KEYED, compacted=True) == []
    await validator.close()


@in_loop
async def test_an_idle_child_ends():
    validator = RecordValidator(SystemJobs())
    await validator.check(KEYED, compacted=True)
    idle = validator.child
    validator.end_idle()
    assert await asyncio.wait_for(idle.wait(), 20) == 0
    assert await validator.check(KEYED, compacted=True) == []
    await validator.close()
