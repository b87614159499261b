"""aiokafka in groups: assignments, departures, offsets, a broker that restarts."""

import asyncio
import functools
import itertools

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headrace.testing import Broker

LIMIT_S = 30
_numbers = itertools.count(1)


def in_loop(story):
    @functools.wraps(story)
    def run(*arguments, **fixtures):
        asyncio.run(asyncio.wait_for(story(*arguments, **fixtures), 2 * LIMIT_S))

    return run


class Member:
    """A consumer that reads in a separate task."""

    def __init__(self, bootstrap, group, topic, **settings):
        self.consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=100,
            **settings,
        )
        self.read = []

    async def start(self):
        await self.consumer.start()
        self.reading = asyncio.create_task(self._read())
        return self

    async def _read(self):
        async for record in self.consumer:
            self.read.append((record.partition, record.offset))

    @property
    def assigned(self):
        return {x.partition for x in self.consumer.assignment()}

    async def close(self):
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        await self.consumer.stop()


async def until(condition):
    for _ in range(LIMIT_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


def parted(*members):
    shares = [member.assigned for member in members]
    return all(shares) and sorted(itertools.chain(*shares)) == [0, 1, 2, 3]


async def produce(bootstrap, topic, count):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for number in range(count):
        await producer.send(topic, b"%d" % number, partition=number % 4)
    await producer.stop()


@pytest.fixture
def group():
    return f"aiokafka-{next(_numbers)}"


@pytest.fixture
def topic(headrace_broker):
    name = f"aiokafka-groups-{next(_numbers)}"
    headrace_broker.create_topics({name: 4})
    return name


@in_loop
async def test_members_share_the_partitions_and_take_over(headrace_broker, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    first = await Member(bootstrap, group, topic).start()
    await until(lambda: first.assigned == {0, 1, 2, 3})
    second = await Member(bootstrap, group, topic).start()
    await until(lambda: parted(first, second))
    await produce(bootstrap, topic, 80)
    await until(lambda: len(first.read) + len(second.read) == 80)
    await second.consumer.commit()
    await second.close()
    await until(lambda: first.assigned == {0, 1, 2, 3})
    await first.close()


@in_loop
async def test_a_static_member_returns_without_a_rebalance(headrace_broker, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    first = await Member(bootstrap, group, topic, group_instance_id="one").start()
    second = await Member(bootstrap, group, topic, group_instance_id="two").start()
    await until(lambda: parted(first, second))
    its_share, others_share = second.assigned, first.assigned
    generation = first.consumer._coordinator.generation
    await second.close()  # as a static member, it does not leave the group
    again = await Member(bootstrap, group, topic, group_instance_id="two").start()
    await until(lambda: again.assigned)
    assert (again.assigned, first.assigned) == (its_share, others_share)
    assert first.consumer._coordinator.generation == generation, "there was no rebalance"
    await again.close()
    await first.close()


@in_loop
async def test_offsets_are_committed_and_read(headrace_broker, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    partition = TopicPartition(topic, 3)
    settings = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "enable_auto_commit": False,  # otherwise closing would commit the position
    }
    async with AIOKafkaConsumer(**settings) as consumer:
        consumer.assign([partition])
        assert await consumer.committed(partition) is None
        await consumer.commit({partition: (5, "note")})
        assert await consumer.committed(partition) == 5
    async with AIOKafkaConsumer(**settings) as consumer:
        consumer.assign([partition])
        assert await consumer.committed(partition) == 5


@pytest.mark.parametrize("how", ["restart", "kill"])
@in_loop
async def test_a_group_continues_after_a_restart_of_the_broker(group, how):
    async with Broker(topics={"t": 4}) as broker:
        bootstrap = broker.bootstrap_servers
        settings = {"retry_backoff_ms": 50, "metadata_max_age_ms": 1000}
        members = [await Member(bootstrap, group, "t", **settings).start() for _ in range(2)]
        await until(lambda: parted(*members))
        await produce(bootstrap, "t", 80)
        await until(lambda: sum(len(one.read) for one in members) == 80)
        for one in members:
            await one.consumer.commit()
        if how == "restart":
            await asyncio.to_thread(broker.restart)
        else:
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await produce(bootstrap, "t", 80)
        await until(lambda: sum(len(one.read) for one in members) >= 160)
        records = sorted(position for one in members for position in one.read)
        assert records == [(partition, offset) for partition in range(4) for offset in range(40)]
        for one in members:
            await one.close()
