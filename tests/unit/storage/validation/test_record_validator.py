"""Records are checked in a child process, a few of them on the spot, with the same result."""

import asyncio

import pytest

from headrace.model.errors import Rejected
from headrace.records.batch import GZIP, BadBatch, read_header
from headrace.records.record import Record, assemble, build_batch, validate_records
from headrace.storage.validation.record_validator import RecordValidator
from tests.fakes.standin import in_loop

KEYED = build_batch([Record(n, -1, b"key", b"value") for n in range(100)], codec=GZIP)
PARTLY = build_batch([Record(n, -1, None if n % 7 == 0 else b"k", b"v") for n in range(100)])
FEW = build_batch([Record(0, -1, None, b"v")])
GARBAGE = assemble(read_header(KEYED), b"no records at all")


@in_loop
async def test_the_child_finds_what_the_function_finds():
    checking = RecordValidator()
    for batch in (KEYED, PARTLY, FEW, KEYED):
        for compacted in (True, False):
            found = await checking.check(batch, compacted=compacted)
            assert found == validate_records(batch, compacted=compacted)
    assert len(await checking.check(PARTLY, compacted=True)) == 15
    with pytest.raises(BadBatch, match="gzip"):
        await checking.check(GARBAGE, compacted=True)
    assert await checking.check(KEYED, compacted=True) == []
    await checking.close()


@in_loop
async def test_a_few_records_start_no_child():
    checking = RecordValidator()
    assert len(await checking.check(FEW, compacted=True)) == 1
    assert checking._child is None


@in_loop
async def test_a_child_that_dies_costs_one_batch():
    checking = RecordValidator()
    await checking.check(KEYED, compacted=True)
    checking._child.kill()
    await checking._child.wait()
    with pytest.raises(Rejected):
        await checking.check(KEYED, compacted=True)
    assert await checking.check(KEYED, compacted=True) == []
    await checking.close()


@in_loop
async def test_a_child_that_cannot_be_started_costs_one_batch(monkeypatch):
    async def refused(*_, **__):
        raise RuntimeError("can't start new thread")

    checking = RecordValidator()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", refused)
        with pytest.raises(Rejected):
            await checking.check(KEYED, compacted=True)
    assert await checking.check(KEYED, compacted=True) == []
    await checking.close()


@in_loop
async def test_a_child_that_nobody_asks_any_more_ends_by_itself():
    checking = RecordValidator()
    await checking.check(KEYED, compacted=True)
    idle = checking._child
    checking._let_go()
    assert await asyncio.wait_for(idle.wait(), 20) == 0
    assert await checking.check(KEYED, compacted=True) == []
    await checking.close()
