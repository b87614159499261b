"""What Headrace adds to Kafka's settings: its own, other defaults, one lookup for all."""

from headrace.model.settings.kafka import BROKER, DYNAMIC_ONLY, Row

OURS: dict[str, Row] = {
    "headrace.validate.records": Row("bool", "false", None, "", ""),
}

# Settings of Kafka 3.9 that Kafka 4 removed, and that a cluster on ZooKeeper needs.
ON_ZOOKEEPER: dict[str, Row] = {
    "broker.id.generation.enable": Row("bool", "true", None, "", ""),
    "controlled.shutdown.max.retries": Row("int", "3", None, "", ""),
    "controlled.shutdown.retry.backoff.ms": Row("long", "5000", None, "", ""),
    "leader.imbalance.per.broker.percentage": Row("int", "10", None, "", ""),
    "reserved.broker.max.id": Row("int", "1000", (0, None), "", ""),
    "zookeeper.connect": Row("str", "", None, "", ""),
    "zookeeper.connection.timeout.ms": Row("int", None, None, "", ""),
    "zookeeper.session.timeout.ms": Row("int", "18000", None, "", ""),
}
ADDED: dict[str, Row] = {**OURS, **ON_ZOOKEEPER}

# Where a standalone node must differ from Kafka: one broker cannot hold three replicas of an
# internal topic, and other machines may connect only if the configuration says so.
NODE_DEFAULTS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "node.id": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# These are as in Kafka in a cluster: it may have three brokers.
ONLY_STANDALONE = frozenset(name for name in NODE_DEFAULTS if ".topic." in name or ".log." in name)


def row_of(name: str) -> Row | None:
    """The facts of a broker setting."""
    return BROKER.get(name) or ADDED.get(name) or DYNAMIC_ONLY.get(name)


def default_of(name: str, row: Row, *, in_cluster: bool = False) -> str | None:
    """The default of a broker setting on this node."""
    if in_cluster and name in ONLY_STANDALONE:
        return row.default
    return NODE_DEFAULTS.get(name, row.default)
