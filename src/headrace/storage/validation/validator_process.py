"""The child process that validates every record of produced batches, for ``record_validator``.

    stdin    for each batch: a byte (1: every record needs a key), the size in four bytes, the batch
    stdout   for each batch: the size in four bytes, then JSON:
             ``{"faults": [[index, message, code], …]}``, or ``{"bad": [code, reason]}`` if the
             bytes are no records at all

The process ends when its stdin is closed, and so with the broker.
"""

import json
import sys
from struct import Struct
from typing import BinaryIO

from headrace.records.batch import BadBatch
from headrace.records.record import validate_records

REQUEST = Struct(">?I")
RESPONSE = Struct(">I")


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        compacted, size = REQUEST.unpack(head)
        batch = requests.read(size)
        if len(batch) < size:
            return
        try:
            response = json.dumps({"faults": validate_records(batch, compacted=compacted)})
        except BadBatch as bad:
            response = json.dumps({"bad": [bad.code, bad.reason]})
        responses.write(RESPONSE.pack(len(response)) + response.encode())
        responses.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
