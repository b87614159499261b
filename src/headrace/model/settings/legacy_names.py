"""Settings that Kafka removed before 4.3.1, and their successors.

Users still have files written for Kafka 0.7 to 3.9. Every removed broker setting is listed with
its kind, its last default, and either its successors or the key of the reason
(``descriptions.REASONS``) why it has no effect.
"""

# name: (kind, last default, ((successor, factor from the old unit), ...), reason key)
OldRow = tuple[str, str | None, tuple[tuple[str, int], ...], str]

BROKER: dict[str, OldRow] = {
    # 0.7
    "brokerid": ("int", None, (("broker.id", 1),), ""),
    "enable.zookeeper": ("bool", "true", (), "zookeeper"),
    "log.cleanup.interval.mins": ("int", "10", (("log.retention.check.interval.ms", 60_000),), ""),
    "log.default.flush.interval.ms": ("long", "3000", (("log.flush.interval.ms", 1),), ""),
    "log.default.flush.scheduler.interval.ms": (
        "long",
        "3000",
        (("log.flush.scheduler.interval.ms", 1),),
        "",
    ),
    "log.file.size": ("int", "1073741824", (("log.segment.bytes", 1),), ""),
    "log.flush.interval": ("long", "500", (("log.flush.interval.messages", 1),), ""),
    "log.retention.size": ("long", "-1", (("log.retention.bytes", 1),), ""),
    "max.message.size": ("int", "1000000", (("message.max.bytes", 1),), ""),
    "max.socket.request.bytes": ("int", "104857600", (("socket.request.max.bytes", 1),), ""),
    "monitoring.period.secs": ("int", "600", (), "metrics"),
    "num.threads": ("int", None, (), "loop"),
    "socket.receive.buffer": ("int", "102400", (("socket.receive.buffer.bytes", 1),), ""),
    "socket.send.buffer": ("int", "102400", (("socket.send.buffer.bytes", 1),), ""),
    "topic.flush.intervals.ms": ("str", "", (), "per_topic"),
    "topic.log.retention.hours": ("str", "", (), "per_topic"),
    "topic.partition.count.map": ("str", "", (), "per_topic"),
    # 0.8 to 2.8
    "advertised.host.name": ("str", None, (("advertised.listeners", 1),), ""),
    "advertised.port": ("int", None, (("advertised.listeners", 1),), ""),
    "controller.message.queue.size": ("int", "10", (), "removed_queue"),
    "host.name": ("str", "", (("listeners", 1),), ""),
    "log.delete.delay.ms": ("long", "60000", (("log.segment.delete.delay.ms", 1),), ""),
    "log.flush.interval.ms.per.topic": ("str", "", (), "per_topic"),
    "log.retention.bytes.per.topic": ("str", "", (), "per_topic"),
    "log.retention.hours.per.topic": ("str", "", (), "per_topic"),
    "log.roll.hours.per.topic": ("str", "", (), "per_topic"),
    "log.segment.bytes.per.topic": ("str", "", (), "per_topic"),
    "port": ("int", "9092", (("listeners", 1),), ""),
    "producer.metrics.enable": ("bool", "false", (), "metrics"),
    "quota.consumer.default": ("long", "9223372036854775807", (), "quotas"),
    "quota.producer.default": ("long", "9223372036854775807", (), "quotas"),
    "replica.lag.max.bytes": ("long", None, (), "lag_by_time"),
    "replica.lag.max.messages": ("long", "4000", (), "lag_by_time"),
    "zookeeper.sync.time.ms": ("int", "2000", (), "zookeeper"),
    # until 3.9
    "auto.include.jmx.reporter": ("bool", "true", (), "java"),
    "control.plane.listener.name": ("str", None, (), "one_listener"),
    "delegation.token.master.key": ("password", None, (("delegation.token.secret.key", 1),), ""),
    "eligible.leader.replicas.enable": ("bool", "false", (), "no_elr"),
    "group.coordinator.new.enable": ("bool", "false", (), "one_coordinator"),
    "group.share.enable": ("bool", "false", (), "share"),
    "group.share.max.groups": ("short", "10", (), "share"),
    "inter.broker.protocol.version": ("str", "3.9-IV0", (), "protocol_version"),
    "log.message.downconversion.enable": ("bool", "true", (), "message_format"),
    "log.message.format.version": ("str", "3.0-IV1", (), "message_format"),
    "log.message.timestamp.difference.max.ms": (
        "long",
        "9223372036854775807",
        (("log.message.timestamp.before.max.ms", 1), ("log.message.timestamp.after.max.ms", 1)),
        "",
    ),
    "metadata.log.segment.min.bytes": ("int", "8388608", (), "quorum"),
    "offsets.commit.required.acks": ("short", "-1", (), "offsets_acks"),
    "password.encoder.cipher.algorithm": ("str", "AES/CBC/PKCS5Padding", (), "zookeeper"),
    "password.encoder.iterations": ("int", "4096", (), "zookeeper"),
    "password.encoder.key.length": ("int", "128", (), "zookeeper"),
    "password.encoder.keyfactory.algorithm": ("str", None, (), "zookeeper"),
    "password.encoder.old.secret": ("password", None, (), "zookeeper"),
    "password.encoder.secret": ("password", None, (), "zookeeper"),
    "zookeeper.clientCnxnSocket": ("str", None, (), "zookeeper"),
    "zookeeper.max.in.flight.requests": ("int", "10", (), "zookeeper"),
    "zookeeper.metadata.migration.enable": ("bool", "false", (), "zookeeper"),
    "zookeeper.metadata.migration.min.batch.size": ("int", "200", (), "zookeeper"),
    "zookeeper.set.acl": ("bool", "false", (), "zookeeper"),
    "zookeeper.ssl.cipher.suites": ("list", None, (), "zookeeper"),
    "zookeeper.ssl.client.enable": ("bool", "false", (), "zookeeper"),
    "zookeeper.ssl.crl.enable": ("bool", "false", (), "zookeeper"),
    "zookeeper.ssl.enabled.protocols": ("list", None, (), "zookeeper"),
    "zookeeper.ssl.endpoint.identification.algorithm": ("str", "HTTPS", (), "zookeeper"),
    "zookeeper.ssl.keystore.location": ("str", None, (), "zookeeper"),
    "zookeeper.ssl.keystore.password": ("password", None, (), "zookeeper"),
    "zookeeper.ssl.keystore.type": ("str", None, (), "zookeeper"),
    "zookeeper.ssl.ocsp.enable": ("bool", "false", (), "zookeeper"),
    "zookeeper.ssl.protocol": ("str", "TLSv1.2", (), "zookeeper"),
    "zookeeper.ssl.truststore.location": ("str", None, (), "zookeeper"),
    "zookeeper.ssl.truststore.password": ("password", None, (), "zookeeper"),
    "zookeeper.ssl.truststore.type": ("str", None, (), "zookeeper"),
}

TOPIC: dict[str, OldRow] = {
    "message.downconversion.enable": ("bool", "true", (), "message_format"),
    "message.format.version": ("str", "3.0-IV1", (), "message_format"),
    "message.timestamp.difference.max.ms": (
        "long",
        "9223372036854775807",
        (("message.timestamp.before.max.ms", 1), ("message.timestamp.after.max.ms", 1)),
        "",
    ),
}

# Client settings that users put into broker files: (whose, old default, new name, new default).
CLIENT: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "auto.commit.enable": ("consumer", "true", "enable.auto.commit", "true"),
    "auto.commit.interval.ms": ("consumer", "60000", "auto.commit.interval.ms", "5000"),
    "batch.num.messages": ("producer", "200", "batch.size", "16384"),
    "compression.codec": ("producer", "none", "compression.type", "none"),
    "consumer.id": ("consumer", None, "group.instance.id", None),
    "fetch.message.max.bytes": ("consumer", "1048576", "max.partition.fetch.bytes", "1048576"),
    "group.id": ("consumer", None, "group.id", None),
    "key.serializer.class": ("producer", None, "key.serializer", None),
    "message.send.max.retries": ("producer", "3", "retries", "2147483647"),
    "metadata.broker.list": ("producer", None, "bootstrap.servers", None),
    "partitioner.class": (
        "producer",
        "kafka.producer.DefaultPartitioner",
        "partitioner.class",
        None,
    ),
    "producer.type": ("producer", "sync", None, None),
    "request.required.acks": ("producer", "0", "acks", "all"),
    "serializer.class": (
        "producer",
        "kafka.serializer.DefaultEncoder",
        "value.serializer",
        None,
    ),
    "topic.metadata.refresh.interval.ms": ("producer", "600000", "metadata.max.age.ms", "300000"),
}

# Settings of ZooKeeper's own file zoo.cfg.
ZOOKEEPER_FILE = ("dataDir", "clientPort", "server.N", "myid")
