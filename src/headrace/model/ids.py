"""Types for ids, offsets, epochs and times.

Offsets count records and positions count bytes; the two types never mix. Names that end in ``_end``
are exclusive, names that begin with ``last_`` are inclusive.
"""

import base64
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)  # of a record within its partition
Position = NewType("Position", int)  # of a byte within its segment file
LeaderEpoch = NewType("LeaderEpoch", int)  # of one term as leader of a partition
ControllerEpoch = NewType("ControllerEpoch", int)  # of one term as controller
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
ZkVersion = NewType("ZkVersion", int)  # of a tree node; guards a write, does not order writes
Millis = NewType("Millis", int)  # a time of the broker's clock, never a duration
TopicId = NewType("TopicId", bytes)  # 16 bytes, as on the wire

NO_TOPIC_ID = TopicId(bytes(16))
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def id_to_text(raw: bytes) -> str:
    """A 16-byte id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def id_from_text(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a 16-byte id in base64")
    return raw
