"""Transactions per second: ten records and a commit, with the second version of the protocol."""

import time

from bench import frames, members, topics
from bench.client import Client, framed
from bench.frames import Connection, Step
from bench.node import Node
from bench.report import Row, ratio_at_least
from bench.run import Run, Samples, cpu_of
from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.wire import messages as m

_PRODUCE_VERSION, _END_VERSION, _INIT_VERSION = 12, 5, 5
_RECORDS = 10
_VALUE = bytes(100)
_PARTITION_COUNT = 20
_TOPIC = "transactional"


def transactions(run: Run) -> list[Row]:
    """Transactions of 10 records of 100 B, one after the other: one producer, and 20 at once."""
    samples = Samples("transactions")
    crowds = {"one producer": 1, "20 producers": 20}
    seconds = run.sized(8, 1)
    with run.nodes() as nodes:
        for node in nodes.values():
            topics.create(node.address, _TOPIC, _PARTITION_COUNT)
        for round_number in range(run.rounds + 1):
            for label, count in crowds.items():
                for side, node in nodes.items():
                    producers = [_producer(node, number) for number in range(count)]
                    cpu: list[float] = []
                    with cpu_of(node, cpu):
                        done = frames.run(node.address, producers, seconds, run.scratch)
                    rate = done["rounds"] / done["seconds"]
                    cost = cpu[0] / done["rounds"] * 1e6
                    run.say(
                        f"transactions {side} {label}: {rate:,.0f}/s, {cost:.0f} CPU µs each, "
                        f"{done['retries']} retries"
                    )
                    if round_number:
                        samples.add(side, label, rate)
                        samples.add(side, f"{label}, CPU", cost)
    rows = []
    for label in crowds:
        rows += [
            samples.row(label, "transactions/s", ratio_at_least(1.0)),
            samples.row(f"{label}, CPU", "µs"),
        ]
    return rows


def _producer(node: Node, number: int) -> Connection:
    """A transactional producer with its own partition."""
    name = f"producer-{number}"
    with Client(node.address) as client:
        members.wait_for_coordinator(client, name, members.TRANSACTION)
        identity = _started(client, name)
        produce = _produce_step(name, number % _PARTITION_COUNT)
        return Connection([produce, _end_step(name)], identity)


def _started(client: Client, name: str) -> tuple[int, int]:
    """The producer ID and epoch. InitProducerId aborts an open transaction of that name."""
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    for _ in range(500):
        answer = client.ask(_INIT_VERSION, request)
        if answer.error_code == ErrorCode.NONE:
            return answer.producer_id, answer.producer_epoch
        time.sleep(0.02)
    raise ConnectionError(f"InitProducerId: {ErrorCode(answer.error_code).name}")


def _produce_step(name: str, partition: int) -> Step:
    """Each transaction has its own epoch, so the sequence is 0 every time."""
    now = int(time.time() * 1000)
    batch = build_batch(
        [Record(offset, now, None, _VALUE, ()) for offset in range(_RECORDS)],
        producer_id=0,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    request = m.ProduceRequest
    frame = framed(
        _PRODUCE_VERSION,
        request(
            transactional_id=name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                request.TopicProduceData(
                    name=_TOPIC,
                    partition_data=[request.PartitionProduceData(index=partition, records=batch)],
                )
            ],
        ),
    )
    # Header with its tags, one topic with its name, one partition with its index.
    code_at = 4 + 1 + 1 + 1 + len(_TOPIC) + 1 + 4
    return Step(frame, code_at=code_at, batch_at=frame.index(batch))


def _end_step(name: str) -> Step:
    marked = b"\x11" * 8, b"\x22" * 2
    request = m.EndTxnRequest(
        transactional_id=name,
        producer_id=int.from_bytes(marked[0], "big"),
        producer_epoch=int.from_bytes(marked[1], "big"),
        committed=True,
    )
    frame = framed(_END_VERSION, request)
    # Header with its tags, throttle time, code, then the identity of the next transaction.
    code_at = 4 + 1 + 4
    return Step(
        frame,
        code_at=code_at,
        identity_at=frame.index(b"".join(marked)),
        identity_from=code_at + 2,
    )
