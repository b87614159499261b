"""The settings of replication that follow from the number of brokers of a cluster."""


def replication_settings(broker_count: int) -> dict[str, str]:
    """Three replicas where possible; with three brokers, two of them must have a record."""
    replicas = str(min(3, broker_count))
    min_isr = "2" if broker_count >= 3 else "1"
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_isr,
    }
