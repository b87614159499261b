"""Validates the records of produced batches, away from the loop.

A loop over records holds the interpreter lock for milliseconds per megabyte, in a thread as well.
So a child process (``validation_job``) does it. It starts with the first batch that needs it,
validates one batch at a time, and ends after an idle period. A few records are validated right
here, which takes less time than asking the child.
"""

import asyncio
import json
import logging

from headrace.model.errors import ErrorCode, Rejected
from headrace.records.batch import NO_CODEC, BadBatch, read_header
from headrace.records.record import RecordFault, validate_records
from headrace.storage.validation.validation_job import request_for
from headrace.world.jobs import ChildJob, SystemJobs

_log = logging.getLogger("headrace.storage")

_JOB = "headrace.storage.validation.validation_job"
_INLINE_RECORDS_MAX = 32
_IDLE_S = 60


class RecordValidator:
    def __init__(self, jobs: SystemJobs) -> None:
        self._jobs = jobs
        self.child: ChildJob | None = None
        self._turn = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def check(self, batch: bytes | bytearray, *, compacted: bool) -> list[RecordFault]:
        """The result of ``validate_records`` for a batch whose header was checked.

        Raises BadBatch as that does, and Rejected if the child dies.
        """
        header = read_header(batch)
        if header.codec == NO_CODEC and header.record_count <= _INLINE_RECORDS_MAX:
            return validate_records(batch, compacted=compacted)
        async with self._turn:
            try:
                response = json.loads(await self._ask(batch, compacted))
            except (EOFError, OSError) as error:
                _log.error("Record validator died: %r. The next batch restarts it", error)
                await self._kill()
                raise Rejected(
                    ErrorCode.KAFKA_STORAGE_ERROR, "the records could not be validated; retry"
                ) from None
            self._idle_timer = asyncio.get_running_loop().call_later(_IDLE_S, self.end_idle)
        if "bad" in response:
            code, reason = response["bad"]
            raise BadBatch(ErrorCode(code), reason)
        return [RecordFault(i, text, ErrorCode(code)) for i, text, code in response["faults"]]

    async def _ask(self, batch: bytes | bytearray, compacted: bool) -> bytes:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self.child is None:
            self.child = await self._jobs.start(_JOB)
        await self.child.send(request_for(batch, compacted=compacted))
        return await self.child.receive()

    def end_idle(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            child.release()

    async def _kill(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            await child.kill()

    async def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._kill()
