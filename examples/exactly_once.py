"""Exactly once from topic to topic, results and offsets in one transaction: no loss, no double.

    headrace topics create orders
    python examples/exactly_once.py 127.0.0.1:9092

Reads ``orders``, writes each in capitals to ``shouted``. The offsets of what was read are committed
as part of the transaction that holds what was written: both count, or neither does.

Lost: nothing. Doubled: nothing, for readers with ``isolation.level=read_committed``; others also
see what was written in transactions that never ended well.
When it dies, its transaction is aborted as soon as a successor with the same transactional id
starts, or after ``transaction.timeout.ms``; until then readers wait at that point. A process that
was only thought dead is fenced: its commits are refused, and it must end.
It covers the topics, nothing else: a mail that is sent meanwhile is sent again. For a database see
``offset_with_result.py``.
"""

import argparse
import os
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

BATCH_SIZE_MAX = 100


def copy_batch(consumer: Consumer, producer: Producer, batch: list[Message]) -> None:
    """One transaction; raises KafkaException, aborted, if it cannot be."""
    producer.begin_transaction()
    try:
        next_offsets = {}
        for record in batch:
            producer.produce("shouted", key=record.key(), value=record.value().upper())
            next_offsets[record.topic(), record.partition()] = record.offset() + 1
        producer.send_offsets_to_transaction(
            [TopicPartition(*place, offset) for place, offset in next_offsets.items()],
            consumer.consumer_group_metadata(),  # refused if the group has given us up
        )
        producer.commit_transaction()
    except KafkaException as failure:
        if not failure.args[0].fatal():  # fatal: a successor has fenced us, and aborted this
            producer.abort_transaction()
        raise


def copy_all(consumer: Consumer, producer: Producer) -> None:
    batch: list[Message] = []
    # Whoever gets the partitions next reads from the last commit, so what we hold is theirs to do.
    consumer.subscribe(["orders"], on_revoke=lambda _consumer, _partitions: batch.clear())
    while True:
        record = consumer.poll(0.1)
        if record is not None:
            if record.error():
                raise KafkaException(record.error())
            batch.append(record)
        if batch and (record is None or len(batch) == BATCH_SIZE_MAX):
            copy_batch(consumer, producer, batch)
            batch.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("HEADRACE_BOOTSTRAP"))
    bootstrap = parser.parse_args().bootstrap or "127.0.0.1:9092"

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            # The same at every start, and another for each process that runs at the same time.
            "transactional.id": "shouter-1",
            "transaction.timeout.ms": 10_000,
        }
    )
    producer.init_transactions()  # ends what a dead predecessor left open
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "exactly-once",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transaction does that
            "isolation.level": "read_committed",
            "session.timeout.ms": 6_000,  # so long the partitions of a dead one wait
        }
    )
    try:
        copy_all(consumer, producer)
    except KafkaException as failure:
        # The consumer has read beyond what was aborted. A new start goes back to the last commit.
        print(f"aborted, start again: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
