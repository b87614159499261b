"""What is said of settings: why one has no effect, what one means here, old defaults.

Loaded only when there is something to say, never on the way to a running node.
"""

REASONS = {
    "clusters": "it is about several brokers; clusters come with a later release",
    "groups": "consumer groups come with a later release",
    "share": "share groups come with a later release",
    "streams": "streams groups come with a later release",
    "transactions": "transactions come with a later release",
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
