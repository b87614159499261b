"""Checking the records of produced batches, away from the loop.

A loop over records holds the interpreter lock for milliseconds per megabyte, in a thread as
well. So a child (``validator_process``) does it: started with the first batch that needs it, asked
one batch at a time, ended when nothing came for a while. A handful of records is looked at on
the spot, which takes less time than asking.
"""

import asyncio
import json
import logging
from contextlib import suppress

from headrace.model.errors import ErrorCode, Rejected
from headrace.records.batch import NO_CODEC, BadBatch, read_header
from headrace.records.record import RecordFault, validate_records
from headrace.storage.background import start_child
from headrace.storage.validation.validator_process import ANSWER, QUESTION

_log = logging.getLogger(__name__)

_ON_THE_SPOT_MAX = 32  # records
_IDLE_S = 60


class RecordValidator:
    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._ending: asyncio.TimerHandle | None = None

    async def check(self, batch: bytes | bytearray, *, compacted: bool) -> list[RecordFault]:
        """What ``validate_records`` says of a batch whose header was checked; it may raise too."""
        header = read_header(batch)
        if header.codec == NO_CODEC and header.record_count <= _ON_THE_SPOT_MAX:
            return validate_records(batch, compacted=compacted)
        async with self._asking:
            try:
                answer = json.loads(await self._ask(batch, compacted))
            except (asyncio.IncompleteReadError, OSError) as error:
                _log.error(
                    "no process checks records: %r. The next batch asks for a new one", error
                )
                await self._end()
                raise Rejected(
                    ErrorCode.KAFKA_STORAGE_ERROR, "the records could not be checked; send again"
                ) from None
            self._ending = asyncio.get_running_loop().call_later(_IDLE_S, self._let_go)
        if "bad" in answer:
            code, reason = answer["bad"]
            raise BadBatch(ErrorCode(code), reason)
        return [RecordFault(i, text, ErrorCode(code)) for i, text, code in answer["faults"]]

    async def _ask(self, batch: bytes | bytearray, compacted: bool) -> bytes:
        if self._ending is not None:
            self._ending.cancel()
        if self._child is None:
            self._child = await start_child("headrace.storage.validation.validator_process")
        questions, answers = self._child.stdin, self._child.stdout
        assert questions is not None and answers is not None
        questions.write(QUESTION.pack(compacted, len(batch)))
        questions.write(batch)
        await questions.drain()
        (size,) = ANSWER.unpack(await answers.readexactly(ANSWER.size))
        return await answers.readexactly(size)

    def _let_go(self) -> None:
        """Nobody asked for a while: the child ends by itself once its stdin is closed."""
        child, self._child = self._child, None
        if child is not None and child.stdin is not None:
            child.stdin.close()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            assert child.stdin is not None
            child.stdin.close()

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        await self._end()
