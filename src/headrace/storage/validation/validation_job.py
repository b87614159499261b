"""The job that validates every record of produced batches, for ``record_validator``.

request    a byte (1: every record needs a key), then the batch
response   JSON: ``{"faults": [[index, message, code], …]}``, or ``{"bad": [code, reason]}`` if
           the bytes are not records
"""

import json

from headrace.records.batch import BadBatch
from headrace.records.record import validate_records
from headrace.world.job_host import Host


def request_for(batch: bytes | bytearray, *, compacted: bool) -> bytes:
    return bytes([compacted]) + batch


def handle(request: bytes, host: Host) -> None:
    """Validate one batch."""
    try:
        faults = validate_records(request[1:], compacted=bool(request[0]))
        response = json.dumps({"faults": faults})
    except BadBatch as bad:
        response = json.dumps({"bad": [bad.code, bad.reason]})
    host.respond(response.encode())
