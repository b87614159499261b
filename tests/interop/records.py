"""Write and read records with the stock client, to compare two brokers."""

import random
import time
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

LIMIT_S = 120  # of a transaction while its coordinator moves on a busy machine
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Seen(NamedTuple):
    """Everything that a consumer sees of a record."""

    partition: int
    offset: int
    timestamp: tuple[int, int]  # type and milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read(
    address: str, topic: str, *, partitions: int = 1, isolation: str = "read_uncommitted"
) -> list[Seen]:
    """Every record of a topic from its start to its end, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation,
            "log_level": 2,
        }
    )
    places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
    consumer.assign(places)
    seen, ended = [], set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        if message is None:
            raise TimeoutError(f"{topic} on {address}: no record and no end for 30 s")
        if (error := message.error()) is None:
            seen.append(_seen(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise KafkaException(error)
    consumer.close()
    return sorted(seen, key=lambda record: (record.partition, record.offset))


def _seen(message: Message) -> Seen:
    headers = tuple((name, value) for name, value in message.headers() or [])
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Seen(partition, offset, message.timestamp(), message.key(), message.value(), headers)


def minutes_ago(minutes: int) -> int:
    """A timestamp for records; recent, because a broker forgets a producer after a day."""
    return int(time.time() * 1000) - minutes * 60_000


def write_every_kind(
    address: str, topic: str, *, start_ms: int = minutes_ago(60), idempotent: bool = True
) -> int:
    """Batches in every codec, with keys, headers, nulls and given times, each codec's by a producer
    of its own. Returns how many records were acknowledged.
    """
    written = 0
    dice = random.Random(3)
    for codec_number, codec in enumerate(CODECS):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": idempotent,
                "compression.type": codec,
                "linger.ms": 5,
                "batch.num.messages": 100,
                "log_level": 3,  # do not print retries while a coordinator loads
            }
        )
        for i in range(600):
            producer.produce(
                topic,
                key=None if i % 7 == 0 else f"key-{i % 50}",
                value=None if i % 11 == 0 else f"{codec} {i} {dice.randbytes(i).hex()}".encode(),
                headers=[("codec", codec.encode()), ("nothing", None)] if i % 3 == 0 else None,
                timestamp=start_ms + codec_number * 10_000 + i,
                partition=0,
            )
            written += 1
        assert producer.flush(60) == 0, f"{codec} was not acknowledged"
    return written


def write_transactions(address: str, topic: str, *, start_ms: int = minutes_ago(30)) -> None:
    """One producer: a committed transaction, an aborted one, and a committed one."""
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": f"tx-{topic}", "log_level": 3}
    )
    producer.init_transactions(LIMIT_S)
    for turn, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for i in range(50):
            word = "kept" if commits else "dropped"
            at = start_ms + turn * 1000 + i
            producer.produce(topic, f"{word} {turn} {i}", timestamp=at, partition=0)
        if commits:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)
