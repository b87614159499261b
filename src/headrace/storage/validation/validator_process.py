"""The process that looks at every record of produced batches, for ``record_validator``.

    stdin    a byte (1: every record needs a key), the size in four bytes, the batch; and again
    stdout   the size in four bytes, then JSON: ``{"faults": [[index, message, code], …]}``, or
             ``{"bad": [code, reason]}`` if these are no records at all

It ends when its stdin does, and so with the broker.
"""

import json
import sys
from struct import Struct
from typing import BinaryIO

from headrace.records.batch import BadBatch
from headrace.records.record import validate_records

QUESTION = Struct(">?I")
ANSWER = Struct(">I")


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    while len(head := questions.read(QUESTION.size)) == QUESTION.size:
        compacted, size = QUESTION.unpack(head)
        batch = questions.read(size)
        if len(batch) < size:
            return
        try:
            answer = json.dumps({"faults": validate_records(batch, compacted=compacted)})
        except BadBatch as bad:
            answer = json.dumps({"bad": [bad.code, bad.reason]})
        answers.write(ANSWER.pack(len(answer)) + answer.encode())
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
