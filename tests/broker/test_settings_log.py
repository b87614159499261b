"""Settings of logs: each one changes what is accepted, or what the files look like."""

import logging
import random
import time
from contextlib import contextmanager

import pytest

from headrace.model.config import BrokerConfig, TopicConfig, topic_config
from headrace.model.errors import ErrorCode
from headrace.model.settings import kafka
from headrace.model.settings.resources import ResourceType
from headrace.records.batch import headers
from headrace.records.record import Record, build_batch, iter_records
from headrace.storage.compaction.key_offsets import KeyOffsets
from headrace.storage.compaction.log_cleaner import CleanerSettings
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until


@contextmanager
def a_client(**options):
    """A client of a broker of its own."""
    with Broker(**options) as broker, RawClient(broker.bootstrap_servers) as client:
        yield client


NOT_DEFAULT = {
    "cleanup.policy": "compact",
    "compression.type": "zstd",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.25",
    "preallocate": "true",
    "segment.bytes": "2000000",
    "unclean.leader.election.enable": "true",
}


@pytest.mark.parametrize(
    ("topic_setting", "broker_setting"),
    [(name, synonyms[0]) for name, synonyms in kafka.TOPIC_SYNONYMS.items()],
)
def test_a_topic_without_its_own_value_has_that_of_the_broker(topic_setting, broker_setting):
    text = NOT_DEFAULT.get(topic_setting, "5")
    attribute = topic_setting.replace(".", "_")
    inherited = topic_config(BrokerConfig.parse({broker_setting: text}), {})
    own = topic_config(BrokerConfig.parse({}), {topic_setting: text})
    default = topic_config(BrokerConfig.parse({}), {})
    assert getattr(inherited, attribute) == getattr(own, attribute) != getattr(default, attribute)
    assert isinstance(inherited, TopicConfig)


def test_a_running_broker_uses_the_broker_setting_for_its_topics():
    with a_client(config={"log.cleanup.policy": "compact"}, topics=["t"]) as client:
        keyless = build_batch([Record(0, -1, None, b"x")])
        assert client.produce("t", keyless).error_code == ErrorCode.INVALID_RECORD


def test_a_refused_batch_is_logged_with_its_client_and_its_partition_once(caplog):
    with a_client() as client:
        client.create_topic("plain")
        client.create_topic("small", max_message_bytes="100")
        with caplog.at_level(logging.INFO, logger="headrace.broker"):
            client.produce("plain", build_batch([Record(0, -1, b"k", b"x")])[:-1])
            client.produce("small", build_batch([Record(0, -1, b"k", b"x" * 1000)]))
    refused = [r.getMessage() for r in caplog.records if "Refused a batch" in r.getMessage()]
    for line, partition in zip(refused, ("plain-0", "small-0"), strict=True):
        assert line.startswith("Refused a batch from User:ANONYMOUS at 127.0.0.1 (")
        assert line.count(partition) == 1


def test_deleted_records_are_logged_with_the_client(caplog):
    request = m.DeleteRecordsRequest
    with a_client(topics=["t"]) as client:
        client.produce("t", build_batch([Record(0, -1, b"k", b"v")]))
        partitions = [request.DeleteRecordsPartition(partition_index=0, offset=1)]
        topics = [request.DeleteRecordsTopic(name="t", partitions=partitions)]
        with caplog.at_level(logging.INFO, logger="headrace.broker"):
            client.ask(ApiKey.DELETE_RECORDS, 2, request(topics=topics, timeout_ms=1000))
    assert "deleted the records of t-0 below offset 1" in caplog.text
    assert "User:ANONYMOUS at 127.0.0.1 (" in caplog.text


# --- what is accepted


def batch_at(timestamp):
    return build_batch([Record(0, timestamp, b"k", b"v")])


def test_limits_of_size_and_time_refuse_a_batch_and_say_why():
    now = int(time.time() * 1000)
    with a_client() as client:
        client.create_topic("large", max_message_bytes="1000")
        client.create_topic("early", message_timestamp_before_max_ms="3600000")
        client.create_topic("late", message_timestamp_after_max_ms="3600000")
        client.create_topic("plain")
        client.create_topic("ours", message_timestamp_type="LogAppendTime")
        large = build_batch([Record(0, now, b"k", bytes(1_000))])
        early, late = batch_at(now - 12_900_000), batch_at(now + 12_900_000)
        for batch in (large, early):
            assert client.produce("plain", batch).error_code == 0
        answer = client.produce("large", large)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert answer.error_message == f"{len(large):,} bytes; max.message.bytes is 1,000"
        answer = client.produce("early", early)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert answer.error_message == (
            f"timestamp {now - 12_900_000} is 3 h 35 min behind the broker; "
            "message.timestamp.before.max.ms allows 1 h"
        )
        answer = client.produce("late", late)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert "ahead of the broker; message.timestamp.after.max.ms allows 1 h" in (
            answer.error_message
        )
        client.produce("ours", batch_at(1))
        (record,) = iter_records(client.fetch("ours", 0).records)
        assert record.timestamp >= now


@pytest.mark.parametrize(
    ("codec", "setting", "low", "high"),
    [
        ("gzip", "compression_gzip_level", "1", "9"),
        ("lz4", "compression_lz4_level", "1", "17"),
        ("zstd", "compression_zstd_level", "1", "19"),
    ],
)
def test_the_broker_recompresses_with_the_codec_and_the_level_of_the_topic(
    codec, setting, low, high
):
    dice = random.Random(1)
    words = [bytes(dice.choices(b"abcdefgh", k=6)) for _ in range(300)]
    value = b" ".join(dice.choices(words, k=20_000))
    batch = build_batch([Record(0, -1, b"k", value)])
    sizes = []
    with a_client() as client:
        for level in (low, high):
            topic = f"level-{level}"
            client.create_topic(topic, compression_type=codec, **{setting: level})
            assert client.produce(topic, batch).error_code == 0
            records = client.fetch(topic, 0).records
            ((_, header),) = headers(records)
            assert header.codec != 0
            sizes.append(len(records))
    assert sizes[1] < sizes[0] < len(batch)


# --- files


def test_segments_and_indexes_have_the_shape_that_the_topic_asks_for(tmp_path):
    now = int(time.time() * 1000)
    topics = {
        "plain": {},
        "by-size": {"internal_segment_bytes": "2000"},
        "by-megabytes": {"segment_bytes": "1048576"},
        "by-time": {"segment_ms": "1000"},
        "by-index": {"segment_index_bytes": "16", "index_interval_bytes": "1"},
        "indexed": {"index_interval_bytes": "1"},
        "ready": {"preallocate": "true", "segment_bytes": "3000000"},
    }
    with a_client(data=tmp_path) as client:
        for name, settings in topics.items():
            client.create_topic(name, **settings)
            for number in range(8):
                batch = build_batch([Record(0, now + 500 * number, b"k", bytes(1_000))])
                assert client.produce(name, batch).error_code == 0
        mega = build_batch([Record(0, now, b"k", bytes(700_000))])
        for _ in range(2):
            assert client.produce("by-megabytes", mega).error_code == 0
        (ready,) = (tmp_path / "ready-0").glob("*.log")
        assert ready.stat().st_size == 3_000_000
    segment_count = {name: len(list((tmp_path / f"{name}-0").glob("*.log"))) for name in topics}
    assert segment_count["plain"] == segment_count["indexed"] == 1
    assert segment_count["by-size"] == 8
    assert segment_count["by-megabytes"] == 2
    assert segment_count["by-time"] == 3
    assert segment_count["by-index"] > 2
    index_size = {
        name: next((tmp_path / f"{name}-0").glob("*.index")).stat().st_size
        for name in ("plain", "indexed")
    }
    assert index_size["plain"] < index_size["indexed"]


def test_files_of_a_deleted_topic_stay_for_the_delay(tmp_path):
    with a_client(data=tmp_path) as client:
        client.create_topic("quick", file_delete_delay_ms="0")
        client.create_topic("slow", file_delete_delay_ms="60000")
        request = m.DeleteTopicsRequest(topic_names=["quick", "slow"], timeout_ms=10_000)
        client.ask(ApiKey.DELETE_TOPICS, 5, request)
        wait_until(lambda: not list(tmp_path.glob("quick-0*")))
        assert len(list(tmp_path.glob("slow-0.*-delete"))) == 1


def test_partitions_are_spread_over_the_log_directories(tmp_path):
    directories = [tmp_path / "a", tmp_path / "b"]
    config = {"log.dirs": ",".join(map(str, directories))}
    with Broker(data=tmp_path, config=config, topics={"t": 2}):
        assert sorted(len(list(each.glob("t-*"))) for each in directories) == [1, 1]


# --- periodic tasks


def recovery_points(directory):
    """The entries of the checkpoint of flushed offsets, by topic; empty before it is written."""
    path = directory / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return {line.split()[0]: int(line.split()[2]) for line in lines}


def test_logs_are_flushed_and_checkpointed_at_their_intervals(tmp_path):
    # The checkpoint is written every 5 s and a log never flushed, if these have no effect.
    config = {"replica.high.watermark.checkpoint.interval.ms": 50}
    with a_client(data=tmp_path, config=config) as client:
        client.create_topic("by-count", flush_messages="1")
        client.create_topic("by-time", flush_ms="1")
        client.create_topic("never")
        for topic in ("by-count", "by-time", "never"):
            client.produce(topic, batch_at(-1))
        wait_until(
            lambda: recovery_points(tmp_path) == {"by-count": 1, "by-time": 1, "never": 0},
            limit_s=4,
        )


def test_the_flush_scheduler_flushes_logs_that_have_no_interval_of_their_own(tmp_path):
    config = {
        "replica.high.watermark.checkpoint.interval.ms": 50,
        "log.flush.scheduler.interval.ms": 20,
    }
    with a_client(data=tmp_path, config=config, topics=["t"]) as client:
        client.produce("t", batch_at(-1))
        wait_until(lambda: recovery_points(tmp_path).get("t") == 1, limit_s=4)


def test_an_idle_producer_is_forgotten_after_its_time():
    config = {"producer.id.expiration.ms": 200, "producer.id.expiration.check.interval.ms": 50}
    request = m.DescribeProducersRequest
    asked = request(topics=[request.TopicRequest(name="t", partition_indexes=[0])])
    with a_client(config=config, topics=["t"]) as client:

        def producers():
            answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked)
            return answer.topics[0].partitions[0].active_producers

        records = [Record(0, int(time.time() * 1000), b"k", b"v")]
        batch = build_batch(records, producer_id=9, producer_epoch=0, base_sequence=0)
        assert client.produce("t", batch).error_code == 0
        assert [each.producer_id for each in producers()] == [9]
        wait_until(lambda: not producers())


# --- compaction


def test_the_cleaner_compacts_soon_and_only_if_it_is_enabled(tmp_path):
    config = {
        "log.cleaner.backoff.ms": 20,
        "log.cleaner.enable": False,
        "log.retention.check.interval.ms": 400,
    }
    with a_client(data=tmp_path, config=config) as client:
        client.create_topic("t", cleanup_policy="compact", internal_segment_bytes="500")
        client.create_topic("old", retention_ms="1")
        client.produce("old", batch_at(1))
        for _ in range(10):
            client.produce("t", build_batch([Record(0, -1, b"k", bytes(100))]))
        # Twenty rounds of the cleaner take as long as one of retention.
        wait_until(lambda: client.fetch("old", 1).log_start_offset == 1)
        assert record_count(client, "t") == 10
    config["log.cleaner.enable"] = True
    with a_client(data=tmp_path, config=config) as client:
        # The first round would come after 15 s, if the backoff had no effect.
        wait_until(lambda: record_count(client, "t") < 10, limit_s=10)


def record_count(client, topic):
    count = offset = 0
    while records := client.fetch(topic, offset).records:
        for _, header in headers(records):
            count += header.record_count
            offset = header.next_offset
    return count


def test_the_cleaner_has_the_memory_of_its_settings():
    def capacity(given):
        settings = CleanerSettings.of(BrokerConfig.parse(given))
        keys = KeyOffsets(settings.buffer_size, settings.load_factor, 1 << 20)
        return keys.capacity

    usual = capacity({"log.cleaner.dedupe.buffer.size": "100000"})
    assert capacity({"log.cleaner.dedupe.buffer.size": "50000"}) < usual
    full = {"log.cleaner.dedupe.buffer.size": "100000", "log.cleaner.io.buffer.load.factor": "0.5"}
    assert capacity(full) < usual


def test_a_changed_producer_expiration_reaches_existing_and_later_logs():
    with Broker(topics=["before"]) as broker, RawClient(broker.bootstrap_servers) as client:
        inside = Inside(broker)
        changed = {"producer.id.expiration.ms": "12345"}
        inside.run(inside.services.controller.alter_configs(ResourceType.BROKER, "", changed))
        client.create_topic("after")
        for topic in ("before", "after"):
            assert inside.replica(topic).log.producers.expiration_ms == 12345
