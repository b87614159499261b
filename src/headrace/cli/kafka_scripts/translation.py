"""Which Kafka script a command line names, and the ``headrace`` command line that replaces it.

The first word may be a script (``kafka-topics``, with or without ``.sh``), or a Headrace noun that
is followed by a script's options (``headrace topics --create --topic orders``). What one command
cannot express is refused with the commands that can. Pure.
"""

import re
from collections.abc import Callable, Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts import (
    kafka_broker_api_versions,
    kafka_cluster,
    kafka_configs,
    kafka_console_consumer,
    kafka_console_producer,
    kafka_consumer_groups,
    kafka_consumer_perf_test,
    kafka_delete_records,
    kafka_dump_log,
    kafka_features,
    kafka_get_offsets,
    kafka_leader_election,
    kafka_log_dirs,
    kafka_preferred_replica_election,
    kafka_producer_perf_test,
    kafka_reassign_partitions,
    kafka_replica_verification,
    kafka_server_start,
    kafka_server_stop,
    kafka_shutdown_broker,
    kafka_topics,
    kafka_transactions,
    zookeeper_scripts,
)
from headrace.cli.kafka_scripts.syntax import Translation

Translate = Callable[[Sequence[str]], Translation]

_SCRIPTS: dict[str, Translate] = {
    "kafka-topics": kafka_topics.translate,
    "kafka-configs": kafka_configs.translate,
    "kafka-console-producer": kafka_console_producer.translate,
    "kafka-console-consumer": kafka_console_consumer.translate,
    "kafka-get-offsets": kafka_get_offsets.translate,
    "kafka-delete-records": kafka_delete_records.translate,
    "kafka-log-dirs": kafka_log_dirs.translate,
    "kafka-consumer-groups": kafka_consumer_groups.translate,
    "kafka-transactions": kafka_transactions.translate,
    "kafka-server-start": kafka_server_start.translate,
    "kafka-server-stop": kafka_server_stop.translate,
    "kafka-producer-perf-test": kafka_producer_perf_test.translate,
    "kafka-consumer-perf-test": kafka_consumer_perf_test.translate,
    "kafka-dump-log": kafka_dump_log.translate,
    "kafka-leader-election": kafka_leader_election.translate,
    "kafka-preferred-replica-election": kafka_preferred_replica_election.translate,
    "kafka-reassign-partitions": kafka_reassign_partitions.translate,
    "kafka-replica-verification": kafka_replica_verification.translate,
    "kafka-shutdown-broker": kafka_shutdown_broker.translate,
    "kafka-features": kafka_features.translate,
    "kafka-cluster": kafka_cluster.translate,
    "kafka-broker-api-versions": kafka_broker_api_versions.translate,
    "zookeeper-server-start": zookeeper_scripts.start,
    "zookeeper-server-stop": zookeeper_scripts.stop,
    "zookeeper-shell": zookeeper_scripts.shell,
    "zkServer": zookeeper_scripts.zk_server,
    "zkCli": zookeeper_scripts.zk_cli,
}
# Every other script prints its help when it gets no arguments.
_WITHOUT_ARGUMENTS = ("kafka-server-stop", "zookeeper-server-stop", "zkCli")
# How the names of all other scripts of Kafka begin.
_OTHER_SCRIPTS = ("kafka-", "connect-", "zookeeper-")

# The Java classes that kafka-run-class starts, by the script that replaced them.
_CLASSES = {
    "TopicCommand": "kafka-topics",
    "ConfigCommand": "kafka-configs",
    "ConsoleProducer": "kafka-console-producer",
    "ConsoleConsumer": "kafka-console-consumer",
    "GetOffsetShell": "kafka-get-offsets",
    "DeleteRecordsCommand": "kafka-delete-records",
    "LogDirsCommand": "kafka-log-dirs",
    "ConsumerGroupCommand": "kafka-consumer-groups",
    "TransactionsCommand": "kafka-transactions",
    "DumpLogSegments": "kafka-dump-log",
    "ProducerPerformance": "kafka-producer-perf-test",
    "ConsumerPerformance": "kafka-consumer-perf-test",
    "ShutdownBroker": "kafka-shutdown-broker",
    "ReassignPartitionsCommand": "kafka-reassign-partitions",
    "ReplicaVerificationTool": "kafka-replica-verification",
    "LeaderElectionCommand": "kafka-leader-election",
    "PreferredReplicaLeaderElectionCommand": "kafka-preferred-replica-election",
    "FeatureCommand": "kafka-features",
    "ClusterTool": "kafka-cluster",
    "BrokerApiVersionsCommand": "kafka-broker-api-versions",
}

# A Headrace noun, the script whose options it also takes, and the options that only the script has.
_NOUNS: dict[str, tuple[Translate, tuple[str, ...]]] = {
    "topics": (kafka_topics.translate, kafka_topics.ACTIONS),
    "configs": (kafka_configs.translate, kafka_configs.MARKS),
    "produce": (kafka_console_producer.translate, kafka_console_producer.MARKS),
    "consume": (kafka_console_consumer.translate, kafka_console_consumer.MARKS),
    "groups": (kafka_consumer_groups.translate, kafka_consumer_groups.ACTIONS),
}

# Scripts without a command: why, and what to use instead.
_REFUSED = {
    "kafka-e2e-latency": "use 'headrace perf latency TOPIC'",
    "kafka-groups": "use 'headrace groups list', which shows consumer groups with state and type",
    "kafka-storage": (
        "log directories need no formatting: 'headrace serve --data DIR' creates what it needs"
    ),
}


def translate(arguments: Sequence[str]) -> Translation:
    """The command line as ``headrace`` takes it; one of its own comes back unchanged.

    Raises CommandFailed where there is no translation.
    """
    if not arguments:
        return Translation([])
    first, *rest = arguments
    script = re.sub(r"(\.sh|\.bat)$", "", first.rpartition("/")[2])
    if script == "kafka-run-class":
        return _run_class(rest)
    if script in _REFUSED:
        raise values.wrong(_REFUSED[script])
    if script in _SCRIPTS:
        if "--version" in rest and script.startswith("kafka-"):
            return Translation(["version"])
        is_bare = not rest and script not in _WITHOUT_ARGUMENTS
        return _SCRIPTS[script](["--help"] if is_bare else rest)
    if script.startswith(_OTHER_SCRIPTS):
        raise values.wrong(
            f"{script} has no Headrace command ('headrace --help' lists them all); "
            "use Kafka's own script, which works with this broker"
        )
    if first in _NOUNS:
        translate_noun, marks = _NOUNS[first]
        if any(word.partition("=")[0] in marks for word in rest):
            return translate_noun(rest)
    return Translation(list(arguments))


def _run_class(arguments: Sequence[str]) -> Translation:
    if not arguments:
        raise values.wrong("kafka-run-class: the class is missing")
    name, *rest = arguments
    script = _CLASSES.get(name.rpartition(".")[2])
    if script is None:
        raise values.wrong(f"kafka-run-class: cannot run the Java class {name}")
    return translate([script, *rest])
