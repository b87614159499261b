"""Every setting that the configuration page calls served has a test that shows its effect.

Each of these tests changes the setting and sees the behavior change. A broker setting that topics
inherit is shown by the test of the topic setting and by the one that checks inheritance.
"""

import ast
from pathlib import Path

import pytest

from headrace.model.settings import kafka
from headrace.model.settings.headrace import ADDED

TESTS = Path(__file__).parents[2]

SHOWN_BY = {
    "test_fetches_carry_the_settings_and_the_identity_of_the_broker": (
        "replica.fetch.max.bytes",
        "replica.fetch.min.bytes",
        "replica.fetch.response.max.bytes",
        "replica.fetch.wait.max.ms",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
    ),
    "test_a_partition_with_an_error_is_left_out_for_a_while": ("replica.fetch.backoff.ms",),
    "test_a_follower_that_stops_fetching_leaves_the_isr": ("replica.lag.time.max.ms",),
    "test_an_unclean_election_where_it_is_allowed": ("unclean.leader.election.enable",),
    "test_a_consumer_reads_from_the_replica_in_its_rack": ("replica.selector.class",),
    "test_a_throttled_replica_is_held_back_until_the_rate_allows_it": (
        "follower.replication.throttled.rate",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.rate",
        "leader.replication.throttled.replicas",
    ),
    "test_the_window_of_a_throttle_has_the_size_of_its_settings": (
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
    ),
    "test_several_fetchers_share_the_partitions_of_a_leader": ("num.replica.fetchers",),
    "test_a_node_has_the_id_the_rack_and_the_addresses_that_its_settings_give": (
        "advertised.listeners",
        "broker.id",
        "broker.rack",
        "controller.listener.names",
        "listener.security.protocol.map",
        "listeners",
    ),
    "test_node_id_is_the_number_of_the_node": ("node.id",),
    "test_a_process_without_the_broker_role_does_not_start": ("process.roles",),
    "test_an_idle_connection_is_closed_after_its_time": ("connections.max.idle.ms",),
    "test_fetch_max_bytes_limits_a_response_that_may_be_larger": ("fetch.max.bytes",),
    "test_connections_beyond_the_creation_rate_wait": ("max.connection.creation.rate",),
    "test_max_connections_refuses_the_next_one": ("max.connections",),
    "test_a_host_may_have_a_limit_of_its_own": (
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    ),
    "test_the_number_of_fetch_sessions_is_limited": ("max.incremental.fetch.session.cache.slots",),
    "test_a_description_of_partitions_has_at_most_as_many_as_its_limit": (
        "max.request.partition.size.limit",
    ),
    "test_partly_received_requests_share_the_memory_of_queued_max_request_bytes": (
        "queued.max.request.bytes",
    ),
    "test_socket_buffers_and_the_backlog_have_the_sizes_of_their_settings": (
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ),
    "test_a_request_above_its_limit_closes_the_connection": ("socket.request.max.bytes",),
    "test_topics_are_created_on_demand_and_deleted_only_where_settings_allow_it": (
        "auto.create.topics.enable",
        "delete.topic.enable",
        "num.partitions",
    ),
    "test_a_topic_gets_the_default_replication_factor": ("default.replication.factor",),
    "test_the_cleaner_compacts_soon_and_only_if_it_is_enabled": (
        "cleanup.policy",
        "log.cleaner.backoff.ms",
        "log.cleaner.enable",
    ),
    "test_the_broker_recompresses_with_the_codec_and_the_level_of_the_topic": (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
    ),
    "test_tombstones_are_removed_after_delete_retention_ms": ("delete.retention.ms",),
    "test_moves_are_throttled_by_a_setting": ("replica.alter.log.dirs.io.max.bytes.per.second",),
    "test_files_of_a_deleted_topic_stay_for_the_delay": ("file.delete.delay.ms",),
    "test_logs_are_flushed_and_checkpointed_at_their_intervals": (
        "flush.messages",
        "flush.ms",
        "replica.high.watermark.checkpoint.interval.ms",
    ),
    "test_segments_and_indexes_have_the_shape_that_the_topic_asks_for": (
        "index.interval.bytes",
        "internal.segment.bytes",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.ms",
    ),
    "test_the_cleaner_has_the_memory_of_its_settings": (
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
    ),
    "test_a_cleaner_that_never_finishes_reads_changed_settings": (
        "log.cleaner.io.max.bytes.per.second",
    ),
    "test_coarser_units_and_log_dir_count_if_nothing_finer_is_set": (
        "log.dir",
        "log.roll.hours",
        "log.roll.jitter.hours",
    ),
    "test_partitions_are_spread_over_the_log_directories": ("log.dirs",),
    "test_the_flush_scheduler_flushes_logs_that_have_no_interval_of_their_own": (
        "log.flush.scheduler.interval.ms",
    ),
    "test_records_expire_by_time": (
        "log.retention.check.interval.ms",
        "retention.ms",
    ),
    "test_the_finest_unit_of_retention_counts": (
        "log.retention.hours",
        "log.retention.minutes",
    ),
    "test_an_overdue_log_is_cleaned_at_any_dirty_ratio": (
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
    ),
    "test_limits_of_size_and_time_refuse_a_batch_and_say_why": (
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
    ),
    "test_young_segments_wait_for_the_lag_time": ("min.compaction.lag.ms",),
    "test_with_too_few_replicas_acks_all_is_refused_and_acks_1_is_not_committed": (
        "min.insync.replicas",
    ),
    "test_records_expire_by_size": ("retention.bytes",),
    "test_jitter_brings_the_roll_forward": ("segment.jitter.ms",),
    "test_intervals_of_the_consumer_protocol_are_those_of_the_broker_or_the_group": (
        "consumer.assignment.interval.ms",
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
        "group.consumer.assignment.interval.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.session.timeout.ms",
    ),
    "test_the_consumer_protocol_has_the_limits_and_assignors_of_the_broker": (
        "group.consumer.assignors",
        "group.consumer.max.size",
        "group.consumer.migration.policy",
    ),
    "test_the_broker_limits_what_a_group_may_set": (
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
    ),
    "test_a_group_cannot_use_a_protocol_that_is_not_enabled": (
        "group.coordinator.rebalance.protocols",
    ),
    "test_a_new_classic_group_waits_for_more_members": ("group.initial.rebalance.delay.ms",),
    "test_classic_groups_keep_within_the_limits_of_the_broker": (
        "group.max.session.timeout.ms",
        "group.max.size",
        "group.min.session.timeout.ms",
        "offset.metadata.max.bytes",
    ),
    "test_a_commit_that_takes_too_long_is_refused_and_its_effects_still_run": (
        "offsets.commit.timeout.ms",
    ),
    "test_offsets_expire_at_the_next_check": (
        "offsets.retention.check.interval.ms",
        "offsets.retention.minutes",
    ),
    "test_the_offsets_topic_has_the_shape_that_its_settings_give": (
        "offsets.topic.compression.codec",
        "offsets.topic.num.partitions",
        "offsets.topic.segment.bytes",
    ),
    "test_an_internal_topic_with_more_replicas_than_brokers_cannot_be_created": (
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
    ),
    "test_a_client_that_must_wait_too_long_gets_a_retriable_error": (
        "add.partitions.to.txn.retry.backoff.max.ms",
    ),
    "test_a_batch_that_waits_for_the_last_transaction_tries_again_at_its_interval": (
        "add.partitions.to.txn.retry.backoff.ms",
    ),
    "test_an_idle_producer_is_forgotten_after_its_time": (
        "producer.id.expiration.check.interval.ms",
        "producer.id.expiration.ms",
    ),
    "test_the_transactions_topic_has_the_shape_that_its_settings_give": (
        "transaction.max.timeout.ms",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
        "transaction.state.log.segment.bytes",
    ),
    "test_a_hanging_transaction_is_found_and_aborted": (
        "transaction.partition.verification.enable",
    ),
    "test_an_idle_transactional_id_is_forgotten": (
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transactional.id.expiration.ms",
    ),
    "test_records_are_validated_only_where_the_setting_asks_for_it": ("headrace.validate.records",),
    "test_a_broker_asks_for_its_shutdown_only_if_that_is_enabled": ("controlled.shutdown.enable",),
    "test_the_request_is_repeated_while_partitions_remain": (
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
    ),
    "test_leadership_goes_back_to_the_preferred_leader": (
        "auto.leader.rebalance.enable",
        "leader.imbalance.check.interval.seconds",
        "leader.imbalance.per.broker.percentage",
    ),
    "test_brokers_talk_on_the_listener_that_is_named_for_them": ("inter.broker.listener.name",),
    "test_brokers_talk_on_the_listener_with_the_protocol_that_is_set": (
        "security.inter.broker.protocol",
    ),
    "test_the_controller_gives_a_silent_broker_up_after_the_socket_timeout": (
        "controller.socket.timeout.ms",
    ),
    "test_records_survive_the_clean_restart_of_every_broker": ("zookeeper.connect",),
    "test_a_taken_broker_id_is_refused_with_the_address_of_its_owner": (
        "zookeeper.session.timeout.ms",
    ),
    "test_zookeeper_must_answer_within_the_connection_timeout": (
        "zookeeper.connection.timeout.ms",
    ),
    "test_a_broker_without_an_id_gets_one_from_the_cluster": (
        "broker.id.generation.enable",
        "reserved.broker.max.id",
    ),
}

# Shown by the test of the topic setting, and by one that all of them share.
INHERITANCE = "test_a_topic_without_its_own_value_has_that_of_the_broker"
INHERITED = {synonyms[0]: topic_setting for topic_setting, synonyms in kafka.TOPIC_SYNONYMS.items()}


@pytest.fixture(scope="module")
def files_of_tests():
    """The text of the file of each test, by the test's name."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = text
    return found


def test_every_served_setting_has_a_test_that_shows_it():
    tables = (kafka.BROKER, kafka.DYNAMIC_ONLY, kafka.TOPIC, kafka.GROUP, ADDED)
    served = {name for table in tables for name, row in table.items() if not row.no_effect}
    shown = {name for names in SHOWN_BY.values() for name in names}
    inherited = {name for name, topic_setting in INHERITED.items() if topic_setting in shown}
    assert served - shown - inherited == set(), "write a test, or give a reason"
    assert shown - served == set(), "these have no effect"


@pytest.mark.parametrize(("test", "settings"), [*SHOWN_BY.items(), (INHERITANCE, ())])
def test_the_test_exists_and_names_its_settings(test, settings, files_of_tests):
    assert test in files_of_tests, f"there is no {test}"
    text = files_of_tests[test]
    missing = [n for n in settings if n not in text and n.replace(".", "_") not in text]
    assert missing == []
