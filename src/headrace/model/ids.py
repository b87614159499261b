"""The words of the domain. Every number that travels has a name here.

Offsets count records, positions count bytes, and the two never mix. A name
ending in ``_end`` is exclusive and one beginning with ``last_`` is inclusive.
"""

import base64
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)  # of a record within its partition
Position = NewType("Position", int)  # of a byte within its segment file
LeaderEpoch = NewType("LeaderEpoch", int)  # of one reign over one partition
ControllerEpoch = NewType("ControllerEpoch", int)  # of one reign over the cluster
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
ZkVersion = NewType("ZkVersion", int)  # of a tree node; guards a write, orders nothing
Millis = NewType("Millis", int)  # a point on the broker's clock, never a duration
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
