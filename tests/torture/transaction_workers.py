"""The programs that the torture test of transactions kills and pauses: a producer and a copier.

    python transaction_workers.py produce BOOTSTRAP NAME JOURNAL
    python transaction_workers.py copy BOOTSTRAP NAME JOURNAL

A producer writes each step to its journal before the next one: ``begin N COUNT``, ``committed N``,
``aborted N``. A transaction without an end in the journal may have ended either way. On SIGTERM a
worker finishes its current transaction and exits.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer

PARTITIONS = 3
TRANSACTION_TIMEOUT_MS = 3_000
CALL_LIMIT_S = 5
STUCK_AFTER_S = 30

stopping = False
moved_at = time.monotonic()


def stop(*_):
    global stopping
    stopping = True


class GiveUp(Exception):
    """This producer is fenced or broken; a new one must replace it."""


def settled(call, *arguments):
    """Repeat a call until it is answered; False if the transaction has to be aborted."""
    while True:
        try:
            call(*arguments)
            return True
        except KafkaException as failure:
            error = failure.args[0]
            if error.fatal():
                raise GiveUp(str(error)) from failure
            if error.txn_requires_abort():
                return False
            if not error.retriable():
                raise GiveUp(str(error)) from failure


def transactional_producer(bootstrap, name):
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    settled(producer.init_transactions, CALL_LIMIT_S)
    return producer


def put(producer, topic, value, partition):
    while True:
        try:
            producer.produce(topic, value, partition=partition)
            return
        except BufferError:
            producer.poll(0.05)
        except KafkaException as failure:
            if failure.args[0].fatal():
                raise GiveUp(str(failure)) from failure
            return  # the transaction failed; its end reports it


# --- producing


def produce(bootstrap, name, journal):
    number = next_number(journal)
    dice = random.Random(f"{name}-{number}")
    with journal.open("a", buffering=1) as notes:
        while not stopping:
            try:
                producer = transactional_producer(bootstrap, name)
                while not stopping:
                    one_transaction(producer, name, number, dice, notes)
                    number += 1
            except GiveUp as reason:
                notes.write(f"gave-up {number} {reason}\n")
                number += 1


def next_number(journal):
    lines = journal.read_text().splitlines() if journal.exists() else []
    begun = [int(line.split()[1]) for line in lines if line.startswith("begin ")]
    return max(begun, default=-1) + 1


def one_transaction(producer, name, number, dice, notes):
    count = dice.randint(1, 300)
    notes.write(f"begin {number} {count}\n")
    settled(producer.begin_transaction)
    for index in range(count):
        put(producer, "in", f"{name}:{number}:{index}", index % PARTITIONS)
        producer.poll(0)
    if dice.random() < 0.25:
        settled(producer.flush, CALL_LIMIT_S)  # raises if the transaction has timed out
        abort(producer)
        notes.write(f"aborted {number}\n")
    elif settled(producer.commit_transaction, CALL_LIMIT_S):
        notes.write(f"committed {number}\n")
    else:
        abort(producer)
        notes.write(f"aborted {number}\n")


def abort(producer):
    if not settled(producer.abort_transaction, CALL_LIMIT_S):
        raise GiveUp("the abort must be aborted")


# --- copying


def restart_when_stuck(journal):
    """Restart this program if it hangs, as a supervisor would.

    librdkafka 2.16 waits without end in send_offsets_to_transaction if the group's coordinator was
    down shortly before, despite its timeout (its issues 5456 and 5511): the broker has answered
    every request, and gets no new one.
    """
    while time.monotonic() - moved_at < STUCK_AFTER_S:
        time.sleep(1)
    with journal.open("a") as notes:
        notes.write("restarted: stuck\n")
    os.execv(sys.executable, [sys.executable, *sys.argv])


def copy(bootstrap, name, journal):
    global moved_at
    threading.Thread(target=restart_when_stuck, args=[journal], daemon=True).start()
    while not stopping:
        consumer = None
        try:
            producer = transactional_producer(bootstrap, name)
            consumer = Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": name,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": 2_000,
                    "heartbeat.interval.ms": 300,
                    "reconnect.backoff.max.ms": 200,
                    "fetch.wait.max.ms": 50,
                    "log_level": 0,
                }
            )
            consumer.subscribe(["in"])
            while not stopping:
                moved_at = time.monotonic()
                copy_some(consumer, producer)
        except (GiveUp, KafkaException) as reason:
            with journal.open("a") as notes:
                notes.write(f"restarted: {reason}\n")
        finally:
            if consumer is not None:
                consumer.close()


def copy_some(consumer, producer):
    records = consumer.consume(1_000, 0.2)
    records = [record for record in records if record.error() is None]
    if not records:
        return
    producer.begin_transaction()
    for record in records:
        put(producer, "out", record.value(), record.partition())
        producer.poll(0)
    positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
    group = consumer.consumer_group_metadata()
    if not settled(producer.send_offsets_to_transaction, positions, group, CALL_LIMIT_S):
        abort(producer)
        raise GiveUp("the offsets were refused")
    if not settled(producer.commit_transaction, CALL_LIMIT_S):
        abort(producer)
        # The records must be consumed again; a new consumer starts at the group's offsets.
        raise GiveUp("the commit was refused")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    Path(f"{sys.argv[4]}.{os.getpid()}").touch()  # from now on SIGTERM stops it cleanly
    {"produce": produce, "copy": copy}[sys.argv[1]](sys.argv[2], sys.argv[3], Path(sys.argv[4]))
