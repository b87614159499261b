"""Texts about settings: what each one does here, why one has no effect, earlier defaults.

Imported only when a text is needed: a start without a remark does not load this module.
"""

from headrace.model.settings import kafka

REASONS = {
    "elected_at_once": "an unclean election happens as soon as it is allowed and needed",
    "peers": "replica.socket.timeout.ms and controller.socket.timeout.ms limit what brokers wait",
    "one_listener": "the controller uses the listener that other brokers connect to",
    "no_elr": "the state of a partition in ZooKeeper has no eligible leader replicas",
    "one_coordinator": "one group coordinator serves both group protocols",
    "patterns": "patterns are matched again when topics change, not by a timer",
    "at_once": "the group coordinator writes every decision immediately, without a buffer",
    "share": "share groups come with a later release",
    "streams": "streams groups come with a later release",
    "on_time": "a transaction is aborted as soon as it times out, not at an interval",
    "loads": "internal topics are loaded in pieces of a fixed size",
    "quotas": "quotas come with a later release",
    "security": "authentication and authorization come with a later release",
    "tls": "TLS listeners come with a later release",
    "sasl": "SASL listeners come with a later release",
    "metrics": "the metrics endpoint comes with a later release",
    "telemetry": "the broker does not collect client metrics",
    "tiered": "there is no tiered storage: logs are stored on local disks only",
    "quorum": "there is no Raft quorum: the controller runs in this process",
    "zookeeper": "connections to ZooKeeper have neither TLS nor further settings",
    "java": "it names Java classes, which Headrace cannot load",
    "loop": "one event loop serves all connections",
    "pool": "the number of threads for fsync, deletion and cold reads is fixed",
    "recovery": "logs are opened on first use, and only unflushed tails are read at start",
    "cleaner": "one child process compacts one log at a time",
    "cleaner_buffer": "log.cleaner.dedupe.buffer.size bounds the memory of compaction",
    "listener": "it applies to all listeners together, not to one",
    "queue": "there is no request queue: a connection with 128 requests in flight is not read",
    "first_delay": "each periodic task first runs after its own interval",
    "checkpoints": "replica.high.watermark.checkpoint.interval.ms applies to all checkpoints",
    "parked": "a parked request is removed as soon as it is answered; there is nothing to purge",
    "cordon": "new partitions are placed in every log directory",
    "unstable": "unstable versions are never offered",
    "per_topic": "set it on the topic instead",
    "removed_queue": "the controller has no queue",
    "lag_by_time": "only replica.lag.time.max.ms decides whether a replica is in sync (since 0.9)",
    "protocol_version": "brokers negotiate versions automatically",
    "message_format": "record format 2 is the only one since Kafka 4.0",
    "offsets_acks": "offset commits always wait for all in-sync replicas",
}

# Reasons for a note instead of a warning: the operator loses nothing, because the setting tunes a
# mechanism that Headrace does not have, or because clients that use the feature get an error.
QUIET_REASONS = frozenset(
    {
        "at_once",
        "checkpoints",
        "cleaner",
        "cleaner_buffer",
        "first_delay",
        "loads",
        "loop",
        "on_time",
        "one_coordinator",
        "parked",
        "patterns",
        "pool",
        "queue",
        "quorum",
        "recovery",
        "share",
        "streams",
    }
)

# What a served setting does. The text of a topic setting also applies to its broker setting.
MEANINGS = {
    # addresses and identity
    "advertised.listeners": "addresses that clients are told, by listener name",
    "broker.id": "older name of node.id; if both are set, they must be equal",
    "broker.rack": "rack of this node, as told to clients",
    "controller.listener.names": "names of controller listeners; Headrace does not open them",
    "listener.security.protocol.map": "protocol of each listener name; only PLAINTEXT so far",
    "listeners": "addresses to listen on; an empty host is every interface, port 0 any free port",
    "node.id": "number of this node in the cluster",
    "process.roles": "broker or broker,controller; the process always has both roles",
    # connections and requests
    "connections.max.idle.ms": "a connection without a request for this long is closed",
    "fetch.max.bytes": "upper limit for the max_bytes of a fetch request",
    "max.connection.creation.rate": (
        "new connections per second; also as listener.name.NAME.max.connection.creation.rate"
    ),
    "max.connections": "maximum open connections; also as listener.name.NAME.max.connections",
    "max.connections.per.ip": "maximum open connections from one address",
    "max.connections.per.ip.overrides": "host:limit pairs that replace max.connections.per.ip",
    "max.incremental.fetch.session.cache.slots": "maximum number of fetch sessions",
    "max.request.partition.size.limit": (
        "maximum number of partitions in a DescribeTopicPartitions response"
    ),
    "queued.max.request.bytes": (
        "memory for partly received requests of all connections; a connection that needs more is "
        "closed; -1: 256 MiB or twice socket.request.max.bytes, whichever is larger"
    ),
    "socket.listen.backlog.size": "connections that may wait to be accepted",
    "socket.receive.buffer.bytes": (
        "SO_RCVBUF of each connection; the system's default if not set, or -1"
    ),
    "socket.request.max.bytes": "maximum size of a request; a larger one closes the connection",
    "socket.send.buffer.bytes": (
        "SO_SNDBUF of each connection; 262144 if not set; -1: the system's default"
    ),
    # topics
    "auto.create.topics.enable": "a metadata request for an unknown topic creates it",
    "default.replication.factor": "replicas of a topic created without a replication factor",
    "delete.topic.enable": "topics can be deleted",
    "num.partitions": "partitions of a topic created without a partition count",
    # the log
    "cleanup.policy": "delete old segments, compact by key, both, or neither (empty)",
    "compression.gzip.level": "level of gzip where compression.type is gzip",
    "compression.lz4.level": "level of lz4 where compression.type is lz4; 9 is fast, as in Kafka",
    "compression.zstd.level": "level of zstd where compression.type is zstd",
    "compression.type": "producer: keep batches as they are; otherwise the broker recompresses",
    "delete.retention.ms": "how long compaction keeps a tombstone",
    "file.delete.delay.ms": "how long a deleted file stays on disk under another name",
    "flush.messages": "number of records after which the log is flushed to disk",
    "flush.ms": "time after which the log is flushed to disk",
    "index.interval.bytes": "bytes of log per entry of the offset index",
    "internal.segment.bytes": "segment.bytes without its lower limit, for tests",
    "max.compaction.lag.ms": "maximum time until a record is compacted",
    "max.message.bytes": "maximum size of a record batch, after compression",
    "message.timestamp.after.max.ms": "how far a record timestamp may be ahead of the broker",
    "message.timestamp.before.max.ms": "how far a record timestamp may be behind the broker",
    "message.timestamp.type": (
        "CreateTime: keep the producer's timestamp; LogAppendTime: use the broker's"
    ),
    "min.cleanable.dirty.ratio": "uncompacted share of the log from which compaction runs",
    "min.compaction.lag.ms": "minimum time before a record is compacted",
    "min.insync.replicas": "in-sync replicas needed for acks=all, at most all replicas",
    "preallocate": "allocate the whole size of a new segment on disk",
    "retention.bytes": "size of a partition above which old segments are deleted; -1: no limit",
    "retention.ms": "age above which segments are deleted; -1: no limit",
    "segment.bytes": "size at which a segment is closed",
    "segment.index.bytes": "size at which an index is full and its segment is closed",
    "segment.jitter.ms": "maximum random reduction of segment.ms",
    "segment.ms": "age at which a segment is closed",
    "log.cleaner.backoff.ms": "pause of compaction when there is nothing to compact",
    "log.cleaner.dedupe.buffer.size": "memory for keys in one round of compaction",
    "log.cleaner.enable": "run compaction",
    "log.cleaner.io.buffer.load.factor": "share of the memory for keys that one round may fill",
    "log.cleaner.io.max.bytes.per.second": "maximum read and write rate of compaction",
    "log.dir": "log directory, if log.dirs is not set",
    "log.dirs": "log directories; if one fails, only its partitions go offline",
    "log.flush.scheduler.interval.ms": "how often logs are checked for flush.ms",
    "log.retention.check.interval.ms": "how often logs are checked for retention",
    "log.retention.hours": "retention.ms in hours, if neither minutes nor milliseconds are set",
    "log.retention.minutes": "retention.ms in minutes, if milliseconds are not set",
    "log.roll.hours": "segment.ms in hours, if milliseconds are not set",
    "log.roll.jitter.hours": "segment.jitter.ms in hours, if milliseconds are not set",
    "replica.alter.log.dirs.io.max.bytes.per.second": (
        "maximum copy rate of moves between log directories; 0 pauses them"
    ),
    "leader.replication.throttled.rate": (
        "bytes per second that this broker sends to throttled replicas that are not in sync"
    ),
    "follower.replication.throttled.rate": (
        "bytes per second that this broker fetches for its throttled replicas that are not in sync"
    ),
    "leader.replication.throttled.replicas": (
        "replicas that leader.replication.throttled.rate limits, where their broker leads: "
        "partition:broker, or * for all"
    ),
    "follower.replication.throttled.replicas": (
        "replicas that follower.replication.throttled.rate limits, where their broker follows: "
        "partition:broker, or * for all"
    ),
    "replication.quota.window.num": "samples over which throttled replication is measured",
    "replication.quota.window.size.seconds": "duration of each of these samples",
    "num.replica.fetchers": "connections to each leader that fetch its partitions",
    "replica.fetch.backoff.ms": (
        "longest pause after a failed fetch; the first pauses are shorter, from 20 ms on"
    ),
    "replica.fetch.max.bytes": (
        "maximum size per partition that a follower fetches at once; a larger batch is sent alone"
    ),
    "replica.fetch.min.bytes": "minimum size that a follower's fetch waits for",
    "replica.fetch.response.max.bytes": "maximum size of a response to a follower",
    "replica.fetch.wait.max.ms": "maximum time that a follower's fetch waits for records",
    "replica.high.watermark.checkpoint.interval.ms": "how often all checkpoints are written",
    "replica.lag.time.max.ms": "time after which a follower that lags leaves the ISR",
    "replica.selector.class": (
        "RackAwareReplicaSelector: consumers read from a replica in their rack (client.rack)"
    ),
    "replica.socket.receive.buffer.bytes": (
        "receive buffer of fetchers; if not set, the operating system chooses"
    ),
    "replica.socket.timeout.ms": "time after which a fetcher gives up an unanswered request",
    # groups and their offsets
    "group.consumer.assignment.interval.ms": "minimum time between two assignments of a group",
    "group.consumer.assignors": "assignors of the consumer protocol, the default one first",
    "group.consumer.heartbeat.interval.ms": "heartbeat interval of the consumer protocol",
    "group.consumer.max.assignment.interval.ms": "maximum that a group may set",
    "group.consumer.max.heartbeat.interval.ms": "maximum that a group may set",
    "group.consumer.max.session.timeout.ms": "maximum that a group may set",
    "group.consumer.max.size": "maximum members of a group with the consumer protocol",
    "group.consumer.migration.policy": "allowed changes between the group protocols",
    "group.consumer.min.assignment.interval.ms": "minimum that a group may set",
    "group.consumer.min.heartbeat.interval.ms": "minimum that a group may set",
    "group.consumer.min.session.timeout.ms": "minimum that a group may set",
    "group.consumer.session.timeout.ms": "a member without a heartbeat for this long is removed",
    "group.coordinator.rebalance.protocols": "protocols that groups may use",
    "group.initial.rebalance.delay.ms": "how long a new classic group waits for more members",
    "group.max.session.timeout.ms": "maximum session timeout of a classic member",
    "group.max.size": "maximum members of a classic group",
    "group.min.session.timeout.ms": "minimum session timeout of a classic member",
    "offset.metadata.max.bytes": "maximum size of the metadata of a committed offset",
    "offsets.commit.timeout.ms": "how long an offset commit waits for the in-sync replicas",
    "offsets.retention.check.interval.ms": "how often offsets are checked for expiration",
    "offsets.retention.minutes": "how long the offsets of a group without members are kept",
    "offsets.topic.compression.codec": "codec of __consumer_offsets, as a number; 0: none",
    "offsets.topic.num.partitions": "partitions of __consumer_offsets when it is created",
    "offsets.topic.replication.factor": "replicas of __consumer_offsets when it is created",
    "offsets.topic.segment.bytes": "segment.bytes of __consumer_offsets",
    # producers and transactions
    "producer.id.expiration.check.interval.ms": "how often producer ids are checked for expiration",
    "producer.id.expiration.ms": "an idempotent producer idle for this long is forgotten",
    "add.partitions.to.txn.retry.backoff.max.ms": (
        "how long a batch waits for the previous transaction of its producer to end"
    ),
    "add.partitions.to.txn.retry.backoff.ms": "how often the broker checks during that wait",
    "transaction.max.timeout.ms": "maximum transaction timeout that a producer may request",
    "transaction.partition.verification.enable": (
        "refuse batches that belong to no transaction known to the coordinator"
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "how often transactional ids are checked for expiration"
    ),
    "transaction.state.log.min.isr": "min.insync.replicas of __transaction_state",
    "transaction.state.log.num.partitions": "partitions of __transaction_state when it is created",
    "transaction.state.log.replication.factor": (
        "replicas of __transaction_state when it is created"
    ),
    "transaction.state.log.segment.bytes": "segment.bytes of __transaction_state",
    "transactional.id.expiration.ms": "a transactional id unused for this long is forgotten",
    # clusters
    "auto.leader.rebalance.enable": "give leadership back to preferred leaders automatically",
    "broker.id.generation.enable": "a broker without broker.id gets a number from the cluster",
    "controlled.shutdown.enable": "give up all leaderships before the broker stops",
    "controlled.shutdown.max.retries": "how often the broker asks to give them up",
    "controlled.shutdown.retry.backoff.ms": "pause between these requests",
    "controller.socket.timeout.ms": "time that the controller waits for a broker's response",
    "inter.broker.listener.name": "listener that the other brokers connect to",
    "leader.imbalance.check.interval.seconds": "how often the controller looks at the leaders",
    "leader.imbalance.per.broker.percentage": (
        "share of a broker's preferred leaderships that others may have before they are given back"
    ),
    "reserved.broker.max.id": "the cluster generates broker ids above this number",
    "security.inter.broker.protocol": (
        "protocol of the listener that other brokers connect to, if none is named"
    ),
    "unclean.leader.election.enable": (
        "elect a replica outside of the ISR if no member of the ISR is alive; records may be lost"
    ),
    "zookeeper.connect": (
        "hosts of the ZooKeeper ensemble, and a path below which the cluster has its nodes: "
        "host1:2181,host2:2181/path. The broker joins that cluster"
    ),
    "zookeeper.connection.timeout.ms": (
        "time to reach ZooKeeper at the start; zookeeper.session.timeout.ms if not set"
    ),
    "zookeeper.session.timeout.ms": (
        "a broker that ZooKeeper does not hear from for this long loses its leaderships"
    ),
    # ours
    "headrace.validate.records": (
        "unpack every produced batch and check its records, in a child process"
    ),
}

# Defaults of earlier releases that differ from Kafka 4.3.1; old files rely on them.
OLD_DEFAULTS = {
    "background.threads": "4",
    "broker.id": "0",
    "controlled.shutdown.enable": "false",
    "delete.topic.enable": "false",
    "flush.messages": "none",
    "flush.ms": "none",
    "group.consumer.assignors": "the Java classes of uniform and range",
    "group.consumer.migration.policy": "disabled",
    "group.coordinator.append.linger.ms": "10",
    "group.coordinator.rebalance.protocols": "classic",
    "group.coordinator.threads": "1",
    "group.share.partition.max.record.locks": "200",
    "log.cleaner.dedupe.buffer.size": "524288000",
    "log.cleaner.enable": "false",
    "log.cleaner.threads": "2",
    "log.flush.interval.messages": "none (samples: 10000)",
    "log.flush.interval.ms": "none (samples: 3000)",
    "log.flush.scheduler.interval.ms": "3000",
    "log.message.timestamp.after.max.ms": "9223372036854775807",
    "log.retention.bytes": "-1 (samples: 1073741824)",
    "log.retention.hours": "168 (samples: 24)",
    "log.retention.minutes": "none (samples: 300)",
    "max.message.bytes": "1000000",
    "message.max.bytes": "1000000 (samples: 6525000)",
    "message.timestamp.after.max.ms": "9223372036854775807",
    "metric.reporters": "none",
    "node.id": "-1",
    "num.network.threads": "4",
    "num.partitions": "1 (samples: 2, 3)",
    "num.recovery.threads.per.data.dir": "1",
    "remote.log.manager.copier.thread.pool.size": "-1",
    "remote.log.manager.expiration.thread.pool.size": "-1",
    "remote.log.manager.thread.pool.size": "10",
    "replica.lag.time.max.ms": "10000",
    "retention.bytes": "none",
    "retention.ms": "none",
}


def meaning_of(name: str) -> str | None:
    """What a setting does, or why it has no effect; None if nothing is known of it."""
    if name in MEANINGS:
        return MEANINGS[name]
    for topic_name, synonyms in kafka.TOPIC_SYNONYMS.items():
        if name == synonyms[0] and topic_name in MEANINGS:
            return f"for topics without their own {topic_name}: {MEANINGS[topic_name]}"
    synonym = kafka.GROUP_SYNONYMS.get(name)
    if synonym in MEANINGS:
        return MEANINGS[synonym]
    for table in (kafka.BROKER, kafka.TOPIC, kafka.GROUP, kafka.CLIENT_METRICS):
        row = table.get(name)
        if row is not None and row.no_effect:
            return f"no effect: {REASONS[row.no_effect]}"
    return None
