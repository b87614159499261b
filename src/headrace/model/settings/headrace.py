"""What Headrace adds to Kafka's settings: its own, other defaults, one lookup for all."""

from headrace.model.settings.kafka import BROKER, DYNAMIC_ONLY, Row

OURS: dict[str, Row] = {
    "headrace.validate.records": Row("bool", "false", None, "", ""),
}

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


def row_of(name: str) -> Row | None:
    """The facts of a broker setting."""
    return BROKER.get(name) or OURS.get(name) or DYNAMIC_ONLY.get(name)


def default_of(name: str, row: Row) -> str | None:
    """The default of a broker setting on this node."""
    return NODE_DEFAULTS.get(name, row.default)
