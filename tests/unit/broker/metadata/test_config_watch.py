"""Settings that other brokers and programs write are applied when their notice appears."""

import asyncio

from headrace.broker.metadata.config_watch import ConfigWatch
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.tasks import BackgroundTasks
from headrace.coordination import paths
from headrace.coordination.registry import Registry
from headrace.coordination.tree import ANY_VERSION
from headrace.model.config import BrokerConfig
from headrace.model.settings.resources import ResourceType
from tests.fakes.standin import StillWorld, in_loop
from tests.fakes.trees import memory_tree
from tests.fakes.waiting import until_true


class Watching:
    """Two brokers on one tree; the first watches, the second changes settings."""

    async def start(self):
        self.tree = memory_tree()
        self.session = self.tree.open_session()
        registry = Registry(self.session, 1)
        await registry.create_persistent_nodes()
        self.failures = []
        self.config = DynamicConfig(registry.configs, BrokerConfig.parse({}), 1)
        self.applied = []
        self.tasks = BackgroundTasks(asyncio.get_running_loop(), self.failures.append)
        self.watch = ConfigWatch(
            self.config, StillWorld(), self.tasks, lambda: ["t", "u"], self.applied.append
        )
        self.other = self.tree.open_session()
        self.stores = Registry(self.other, 2).configs
        await self.stores.store("topics", "t", {"retention.ms": "7"})
        await self.watch.load()
        assert self.applied == ["t", "u"]
        self.applied.clear()
        return self

    async def applies(self, *topics):
        await until_true(lambda: len(self.applied) >= len(topics))
        assert self.applied == list(topics)
        self.applied.clear()
        assert self.failures == []


@in_loop
async def test_settings_of_a_topic_are_read_again():
    watching = await Watching().start()
    assert watching.config.topic_config("t").retention_ms == 7
    for value in ("8", "9"):  # the watch is set again
        await watching.stores.store("topics", "t", {"retention.ms": value})
        await watching.applies("t")
        assert watching.config.topic_config("t").retention_ms == int(value)
    await watching.stores.store("topics", "t", {})
    await watching.applies("t")
    assert watching.config.overrides(ResourceType.TOPIC, "t") == {}


@in_loop
async def test_settings_of_this_broker_and_of_all_brokers_reach_every_topic():
    watching = await Watching().start()
    await watching.stores.store("brokers", "<default>", {"log.retention.ms": "50"})
    await watching.applies("t", "u")
    assert watching.config.topic_config("u").retention_ms == 50
    await watching.stores.store("brokers", "1", {"log.retention.ms": "60"})
    await watching.applies("t", "u")
    assert watching.config.config.int("log.retention.ms") == 60
    assert watching.config.topic_config("t").retention_ms == 7


@in_loop
async def test_settings_of_another_broker_change_nothing_here():
    watching = await Watching().start()
    await watching.stores.store("brokers", "2", {"log.retention.ms": "60"})
    await watching.applies("t", "u")
    assert watching.config.config.int("log.retention.ms") != 60
    assert watching.config.broker_overrides(2) == {"log.retention.ms": "60"}


@in_loop
async def test_settings_that_cannot_be_read_stay_as_they_were(caplog):
    watching = await Watching().start()
    node = paths.config("topics", "t")
    await watching.other.set(node, b"{", ANY_VERSION)
    notice = b'{"version":2,"entity_path":"topics/t"}'
    await watching.other.create(paths.CONFIG_CHANGE_PREFIX, notice, sequential=True)
    await watching.applies("t")
    assert watching.config.topic_config("t").retention_ms == 7
    assert "Keeping the settings of t" in caplog.text


@in_loop
async def test_a_lost_session_is_left_to_the_next_one():
    watching = await Watching().start()
    await watching.stores.store("topics", "t", {"retention.ms": "8"})
    watching.tree.expire(watching.session.session_id)
    await until_true(lambda: not len(watching.tasks))
    assert watching.failures == []
