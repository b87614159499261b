"""What a broker does by the clock goes by the settings of the day."""

import asyncio

from confluent_kafka import Producer

from headrace.storage.compaction import Compaction
from headrace.testing import Broker


def test_a_cleaner_that_never_comes_to_an_end_hears_of_changed_settings(monkeypatch, tmp_path):
    speeds = []
    slower = {"log.cleaner.io.max.bytes.per.second": "1000"}

    async def clean_dirtiest(self, logs, settings, now):
        speeds.append(settings.bytes_per_second)
        node.config = node.config.with_dynamic(slower)
        return len(speeds) < 3

    monkeypatch.setattr(Compaction, "clean_dirtiest", clean_dirtiest)
    with Broker(data=tmp_path) as broker:
        node = broker._runner._node
        asyncio.run_coroutine_threadsafe(node._chores._compact(), node.loop).result()
    assert speeds[0] > 1000 and speeds[1:] == [1000, 1000]


def test_a_log_that_somebody_flushes_for_long_holds_up_no_other(tmp_path):
    config = {"log.flush.interval.ms": "1"}
    with Broker(data=tmp_path, topics={"held": 1, "other": 1}, config=config) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for topic in ("held", "other"):
            producer.produce(topic, b"x")
        assert producer.flush(20) == 0
        node = broker._runner._node
        held, other = (node.replicas.get(topic, 0).log for topic in ("held", "other"))

        async def flush_beside():
            async with held.flush_turn:
                await node._chores._flush()
            return other.recovery_point

        done = asyncio.run_coroutine_threadsafe(flush_beside(), node.loop).result(60)
        assert done == other.log_end == 1
