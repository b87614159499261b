"""What a broker does by the clock goes by the settings of the day."""

import asyncio

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
