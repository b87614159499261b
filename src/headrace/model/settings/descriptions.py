"""What is said of settings: why one has no effect, what one means here, old defaults.

Loaded only when there is something to say, never on the way to a running node.
"""

REASONS = {
    "clusters": "it is about several brokers; clusters come with a later release",
    "one_coordinator": "one coordinator serves both protocols of groups",
    "patterns": "a pattern is matched anew when topics have changed, not by a timer",
    "at_once": "what a group's coordinator decides is written at once, from no buffer of its own",
    "share": "share groups come with a later release",
    "streams": "streams groups come with a later release",
    "on_time": "a transaction is aborted the moment its time is over",
    "loads": "internal topics are loaded in pieces of a fixed size",
    "quotas": "quotas come with a later release",
    "security": "authentication and authorization come with a later release",
    "tls": "TLS listeners come with a later release",
    "sasl": "SASL listeners come with a later release",
    "metrics": "the metrics endpoint comes with a later release",
    "telemetry": "clients are not asked for telemetry, so the requests for it are not announced",
    "tiered": "logs lie on local disks only; there is no tiered storage",
    "quorum": "there is no Raft quorum: the controller and its tree live in this process",
    "zookeeper": "this node needs no ZooKeeper; clusters come with a later release",
    "java": "it names Java classes, which this process cannot load",
    "loop": "one event loop serves all connections; use more brokers for more cores",
    "pool": "the few threads for fsync, deletion and cold reads are not counted by a setting",
    "recovery": "logs are opened lazily and only unflushed tails are read at start",
    "cleaner": "one child process compacts, one log at a time",
    "cleaner_buffer": "compaction works in memory bounded by log.cleaner.dedupe.buffer.size",
    "listener": "it is the same for all listeners",
    "queue": "requests stand in no queue: a connection with too many in work is not read",
    "chores": "each chore waits for its own interval first",
    "checkpoints": "all are written together, by replica.high.watermark.checkpoint.interval.ms",
    "parked": "a parked request is dropped the moment it is answered; nothing is left to purge",
    "cordon": "new partitions are placed in every folder of log.dirs",
    "unstable": "unstable versions are never announced",
    "generation": "an id is not generated: node.id is given, or it is 1",
    "per_topic": "topics carry their own settings now: set them on the topic",
    "removed_queue": "the controller has no queue to bound",
    "lag_by_time": "a replica is judged by replica.lag.time.max.ms alone, since Kafka 0.9",
    "protocol_version": "brokers agree on versions by themselves",
    "message_format": "records are kept in format 2, the only one since Kafka 4.0",
    "offsets_acks": "offset commits always wait for all in-sync replicas",
}

# What a served setting does here, in a line. One of a topic stands for its broker twin, too.
MEANINGS = {
    # addresses and identity
    "advertised.listeners": "the addresses that clients are told, by listener name",
    "broker.id": "the older name of node.id; both may be given if they agree",
    "broker.rack": "the rack of this node, which clients are told",
    "controller.listener.names": "listeners of the controller; they are not opened here",
    "inter.broker.listener.name": "the listener for other brokers; it must be advertised",
    "listener.security.protocol.map": "the protocol of each listener name; only PLAINTEXT so far",
    "listeners": "the addresses to open; an empty host means every interface, port 0 any port",
    "node.id": "the number of this node in the cluster",
    "process.roles": "broker or broker,controller; either way this process is both",
    "security.inter.broker.protocol": "the listener for other brokers, by protocol",
    # connections and requests
    "connections.max.idle.ms": "a connection without requests for so long is closed",
    "fetch.max.bytes": "the largest answer to a fetch, whatever the client asks for",
    "max.connection.creation.rate": (
        "new connections per second; also as listener.name.NAME.max.connection.creation.rate"
    ),
    "max.connections": "open connections at most; also as listener.name.NAME.max.connections",
    "max.connections.per.ip": "open connections at most from one address",
    "max.connections.per.ip.overrides": "host:limit pairs that differ from max.connections.per.ip",
    "max.incremental.fetch.session.cache.slots": "fetch sessions kept at most",
    "max.request.partition.size.limit": "partitions per answer to DescribeTopicPartitions",
    "queued.max.request.bytes": "memory for requests; above it sockets are not read; -1: no limit",
    "socket.listen.backlog.size": "connections that may wait to be accepted",
    "socket.receive.buffer.bytes": "SO_RCVBUF of each connection; unless set, or -1: the system's",
    "socket.request.max.bytes": "a larger request closes the connection",
    "socket.send.buffer.bytes": "SO_SNDBUF of each connection; unless set 262144; -1: the system's",
    # topics
    "auto.create.topics.enable": "asking for an unknown topic creates it",
    "default.replication.factor": "replicas of a topic created without a number",
    "delete.topic.enable": "topics can be deleted",
    "num.partitions": "partitions of a topic created without a number",
    # the log
    "cleanup.policy": "delete old segments, compact by key, both, or (empty) neither",
    "compression.gzip.level": "the level where compression.type makes the broker use gzip",
    "compression.lz4.level": "the level where it makes it use lz4; 9 is the fast one, as in Kafka",
    "compression.zstd.level": "the level where it makes it use zstd",
    "compression.type": "producer keeps batches as they came; else the broker recompresses",
    "delete.retention.ms": "how long compaction keeps a tombstone",
    "file.delete.delay.ms": "how long a deleted file stays on disk, renamed",
    "flush.messages": "records after which the log is flushed to disk",
    "flush.ms": "time after which the log is flushed to disk",
    "index.interval.bytes": "bytes of log per entry of the offset index",
    "internal.segment.bytes": "segment.bytes without its lower limit, for tests",
    "max.compaction.lag.ms": "a record is compacted at the latest after so long",
    "max.message.bytes": "the largest record batch, after compression",
    "message.timestamp.after.max.ms": "how far a record's time may be ahead of the broker's",
    "message.timestamp.before.max.ms": "how far a record's time may be behind the broker's",
    "message.timestamp.type": "CreateTime keeps the producer's time, LogAppendTime sets ours",
    "min.cleanable.dirty.ratio": "share of uncompacted log from which compaction runs",
    "min.compaction.lag.ms": "a record stays uncompacted at least so long",
    "min.insync.replicas": "in-sync replicas needed for acks=all, at most all of them",
    "preallocate": "a new segment gets its whole size on disk at once",
    "retention.bytes": "size per partition above which old segments go; -1: no limit",
    "retention.ms": "age above which segments go; -1: no limit",
    "segment.bytes": "size at which a segment is closed",
    "segment.index.bytes": "size at which an index is full and its segment closed",
    "segment.jitter.ms": "at most so much is taken off segment.ms by chance",
    "segment.ms": "age at which a segment is closed",
    "log.cleaner.backoff.ms": "pause of the compactor when there is nothing to do",
    "log.cleaner.dedupe.buffer.size": "memory for keys in one round of compaction",
    "log.cleaner.enable": "compaction runs at all",
    "log.cleaner.io.buffer.load.factor": "share of the memory for keys that one round fills",
    "log.cleaner.io.max.bytes.per.second": "bytes read and written by compaction per second",
    "log.dir": "the folder of the logs, if log.dirs is not given",
    "log.dirs": "the folders of the logs; one that fails goes offline alone",
    "log.flush.scheduler.interval.ms": "how often a flush by time is looked for",
    "log.retention.check.interval.ms": "how often retention is looked for",
    "log.retention.hours": "retention.ms in hours, unless minutes or milliseconds are given",
    "log.retention.minutes": "retention.ms in minutes, unless milliseconds are given",
    "log.roll.hours": "segment.ms in hours, unless milliseconds are given",
    "log.roll.jitter.hours": "segment.jitter.ms in hours, unless milliseconds are given",
    "replica.alter.log.dirs.io.max.bytes.per.second": "maximum copy rate of moves between log "
    "directories; 0 pauses them",
    "replica.high.watermark.checkpoint.interval.ms": "how often all checkpoints are written",
    # groups and their offsets
    "group.consumer.assignment.interval.ms": "an assignment follows the last no sooner than this",
    "group.consumer.assignors": "assignors of the newer protocol, the default one first",
    "group.consumer.heartbeat.interval.ms": "how often a member of the newer protocol is heard",
    "group.consumer.max.assignment.interval.ms": "the largest that a group may set",
    "group.consumer.max.heartbeat.interval.ms": "the largest that a group may set",
    "group.consumer.max.session.timeout.ms": "the largest that a group may set",
    "group.consumer.max.size": "members of one group of the newer protocol at most",
    "group.consumer.migration.policy": "which changes between the protocols of groups are allowed",
    "group.consumer.min.assignment.interval.ms": "the smallest that a group may set",
    "group.consumer.min.heartbeat.interval.ms": "the smallest that a group may set",
    "group.consumer.min.session.timeout.ms": "the smallest that a group may set",
    "group.consumer.session.timeout.ms": "a member that is not heard for so long is removed",
    "group.coordinator.rebalance.protocols": "the protocols that groups may use",
    "group.initial.rebalance.delay.ms": "how long a new classic group waits for more members",
    "group.max.session.timeout.ms": "the largest session timeout of a classic member",
    "group.max.size": "members of one classic group at most",
    "group.min.session.timeout.ms": "the smallest session timeout of a classic member",
    "offset.metadata.max.bytes": "text that may be kept with one committed offset",
    "offsets.commit.timeout.ms": "how long a commit waits for the in-sync replicas",
    "offsets.retention.check.interval.ms": "how often expired offsets are looked for",
    "offsets.retention.minutes": "offsets of a group without members are kept for so long",
    "offsets.topic.compression.codec": "the codec of __consumer_offsets by its number; 0: none",
    "offsets.topic.num.partitions": "partitions of __consumer_offsets when it is made",
    "offsets.topic.replication.factor": "replicas of __consumer_offsets",
    "offsets.topic.segment.bytes": "segment.bytes of __consumer_offsets",
    # producers
    "producer.id.expiration.check.interval.ms": "how often expired producer ids are looked for",
    "producer.id.expiration.ms": "an idempotent producer silent for so long is forgotten",
    "add.partitions.to.txn.retry.backoff.max.ms": (
        "how long a batch waits for the end of its producer's last transaction"
    ),
    "add.partitions.to.txn.retry.backoff.ms": "how often it looks meanwhile",
    "transaction.max.timeout.ms": "the longest timeout that a transaction may ask for",
    "transaction.partition.verification.enable": (
        "a batch must be part of a transaction that the coordinator knows"
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "how often expired transactional ids are looked for"
    ),
    "transaction.state.log.min.isr": "min.insync.replicas of __transaction_state",
    "transaction.state.log.num.partitions": "partitions of __transaction_state when it is made",
    "transaction.state.log.replication.factor": "replicas of __transaction_state when it is made",
    "transaction.state.log.segment.bytes": "segment.bytes of __transaction_state",
    "transactional.id.expiration.ms": "a transactional id idle for so long is forgotten",
    # ours
    "headrace.validate.records": "records are unpacked and checked one by one, off the loop",
}

# Defaults of earlier releases that differ from today's; old files were written against them.
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
    """A line on what a setting does here, or why it does nothing; None if there is none."""
    from headrace.model.settings import kafka

    if name in MEANINGS:
        return MEANINGS[name]
    for topic_name, twins in kafka.TOPIC_TWINS.items():
        if name == twins[0][0] and topic_name in MEANINGS:
            return f"for topics without their own {topic_name}: {MEANINGS[topic_name]}"
    twin = kafka.GROUP_TWINS.get(name)
    if twin in MEANINGS:
        return MEANINGS[twin]
    for table in (kafka.BROKER, kafka.TOPIC, kafka.GROUP, kafka.CLIENT_METRICS):
        row = table.get(name)
        if row is not None and row[4]:
            return f"no effect: {REASONS[row[4]]}"
    return None
