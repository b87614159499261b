"""Exactly once from topic to topic: results and offsets in one transaction. No loss, no duplicate.

    headrace topics create orders
    python examples/exactly_once.py 127.0.0.1:9092

Reads ``orders`` and writes each record in capitals to ``shouted``. The transaction that holds the
results also commits the offsets of the records that were read: both take effect, or neither does.

Lost: nothing. Duplicated: nothing, for readers with ``isolation.level=read_committed``; other
readers also see the records of aborted transactions.
If the program dies, its transaction is aborted when a successor with the same transactional ID
starts, or after ``transaction.timeout.ms``; until then, readers wait at that point. A process that
was wrongly considered dead is fenced: its commits are refused, and it must exit.
The guarantee covers topics only: an e-mail sent in between is sent again. For a database see
``offset_with_result.py``.
"""

import argparse
import os
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

BATCH_SIZE_MAX = 100


def copy_batch(consumer: Consumer, producer: Producer, batch: list[Message]) -> None:
    """Copy one batch in one transaction. Aborts it and raises KafkaException if it fails."""
    producer.begin_transaction()
    try:
        next_offsets = {}
        for record in batch:
            producer.produce("shouted", key=record.key(), value=record.value().upper())
            next_offsets[record.topic(), record.partition()] = record.offset() + 1
        producer.send_offsets_to_transaction(
            [TopicPartition(*place, offset) for place, offset in next_offsets.items()],
            consumer.consumer_group_metadata(),  # refused if the group has expired us
        )
        producer.commit_transaction()
    except KafkaException as failure:
        if not failure.args[0].fatal():  # fatal: a successor fenced us and aborted this
            producer.abort_transaction()
        raise


def copy_all(consumer: Consumer, producer: Producer) -> None:
    batch: list[Message] = []
    # The next owner of the partitions starts at the last commit, so it gets our batch too.
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
            # The same at every start, and different for each process that runs at the same time.
            "transactional.id": "shouter-1",
            "transaction.timeout.ms": 10_000,
        }
    )
    producer.init_transactions()  # aborts the open transaction of a dead predecessor
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "exactly-once",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transaction commits them
            "isolation.level": "read_committed",
            "session.timeout.ms": 6_000,  # then the group reassigns the partitions of a dead member
        }
    )
    try:
        copy_all(consumer, producer)
    except KafkaException as failure:
        # The consumer has read past the aborted batch. A restart goes back to the last commit.
        print(f"aborted; start the program again: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
