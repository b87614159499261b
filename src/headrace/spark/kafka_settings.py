"""What becomes of each setting of Kafka's Java client that a query gives as ``kafka.<name>``.

A name is used, or taken without effect for a reason, or refused with what to do instead; one
that Kafka does not know is refused as well. docs/spark.md is checked against these tables.
"""

from collections.abc import Mapping

from headrace.model.spelling import did_you_mean
from headrace.spark.failures import BadOption

READ, WRITE = "read", "write"

_SECURITY_USED = {
    "security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
    "sasl.jaas.config": "user name and password are taken from it",
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "a PEM file",
    "ssl.truststore.certificates": "PEM text",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "a PEM file with key and chain",
    "ssl.keystore.certificate.chain": "PEM text",
    "ssl.keystore.key": "PEM text",
    "ssl.key.password": "opens the key",
    "ssl.endpoint.identification.algorithm": "empty turns the check of the host name off",
}
_BOTH_USED = {
    "bootstrap.servers": "where to begin; host:port, separated by commas",
    "client.id": "named in the brokers' logs and quotas",
    "request.timeout.ms": "how long one answer may take",
    "retry.backoff.ms": "the first pause before a request is sent again",
    "retry.backoff.max.ms": "the longest such pause",
    "metadata.max.age.ms": "how old the metadata of a topic may be",
    **_SECURITY_USED,
}
USED: dict[str, dict[str, str]] = {
    READ: {
        **_BOTH_USED,
        "check.crcs": "whether checksums are verified",
        "client.rack": "fetch from a replica in this rack where the broker allows it",
        "default.api.timeout.ms": "how long a request is repeated before the query fails",
        "fetch.max.bytes": "upper bound of one fetch",
        "fetch.max.wait.ms": "how long the broker may wait for fetch.min.bytes",
        "fetch.min.bytes": "what the broker waits for",
        "group.id": "the group that progress is committed to",
        "isolation.level": "read_uncommitted or read_committed",
        "max.partition.fetch.bytes": "upper bound of one fetch, 4 MB unless set",
    },
    WRITE: {
        **_BOTH_USED,
        "acks": "all, 1 or 0",
        "batch.size": "bytes of records per batch before compression, 1 MB unless set",
        "compression.type": "none, gzip, snappy, lz4 or zstd",
        "delivery.timeout.ms": "how long a batch is sent again before the query fails",
        "enable.idempotence": "sequence numbers, so that a batch sent twice is stored once",
        "max.block.ms": "how long to wait for a topic or for a transaction to begin",
        "max.request.size": "the largest row that is accepted",
        "transaction.timeout.ms": "of the transactions of delivery=exactly-once",
    },
}

_JAVA = "it names Java code, and there is no JVM in this client"
_MEMBER = "the query reads its partitions by itself and is no member of its group"
_TELEMETRY = "this client keeps no metrics of its own; see the query's progress"
_SOCKETS = "the system's own sizes and pauses are used"
_OAUTH = "OAUTHBEARER is not spoken, and sasl.mechanism says so when it is asked for"
_KERBEROS = "GSSAPI is not spoken, and sasl.mechanism says so when it is asked for"
_LEVEL = "each codec is used at the level its library chooses"
_DIRECT = "rows are packed into batches as they come and sent at once"
_BOTH_WITHOUT_EFFECT = {
    "client.dns.lookup": "every address of a name is tried",
    "config.providers": "Spark hands over values, not references to them",
    "connections.max.idle.ms": _SOCKETS,
    "enable.metrics.push": _TELEMETRY,
    "metadata.recovery.rebootstrap.trigger.ms": "every retry may begin at the bootstrap servers",
    "metadata.recovery.strategy": "every retry may begin at the bootstrap servers",
    "metric.reporters": _TELEMETRY,
    "metrics.num.samples": _TELEMETRY,
    "metrics.recording.level": _TELEMETRY,
    "metrics.sample.window.ms": _TELEMETRY,
    "receive.buffer.bytes": _SOCKETS,
    "reconnect.backoff.max.ms": "retry.backoff.max.ms rules",
    "reconnect.backoff.ms": "retry.backoff.ms rules",
    "sasl.login.class": _JAVA,
    "send.buffer.bytes": _SOCKETS,
    "socket.connection.setup.timeout.max.ms": "request.timeout.ms rules",
    "socket.connection.setup.timeout.ms": "request.timeout.ms rules",
    "ssl.cipher.suites": "Python's defaults are used",
    "ssl.enabled.protocols": "TLS 1.2 and newer are used",
    "ssl.keymanager.algorithm": _JAVA,
    "ssl.keystore.password": "a PEM store has none; ssl.key.password opens the key",
    "ssl.protocol": "the newest that both ends speak is used",
    "ssl.secure.random.implementation": _JAVA,
    "ssl.trustmanager.algorithm": _JAVA,
    "ssl.truststore.password": "a PEM store has none",
}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    READ: {
        **_BOTH_WITHOUT_EFFECT,
        "allow.auto.create.topics": "reading never makes a topic",
        "auto.commit.interval.ms": "progress is committed when a batch is done",
        "exclude.internal.topics": "a pattern never matches internal topics",
        "group.instance.id": _MEMBER,
        "group.protocol": _MEMBER,
        "group.remote.assignor": _MEMBER,
        "heartbeat.interval.ms": _MEMBER,
        "internal.throw.on.fetch.stable.offset.unsupported": "committed offsets are never read",
        "max.poll.interval.ms": _MEMBER,
        "max.poll.records": "whole fetches become Arrow batches",
        "partition.assignment.strategy": _MEMBER,
        "session.timeout.ms": _MEMBER,
        "share.acknowledgement.mode": "share groups are not read",
        "share.acquire.mode": "share groups are not read",
    },
    WRITE: {
        **_BOTH_WITHOUT_EFFECT,
        "buffer.memory": "a task holds one Arrow batch and what is under way for it",
        "compression.gzip.level": _LEVEL,
        "compression.lz4.level": _LEVEL,
        "compression.zstd.level": _LEVEL,
        "linger.ms": _DIRECT,
        "max.in.flight.requests.per.connection": "one request per broker is under way at a time",
        "metadata.max.idle.ms": "metadata.max.age.ms rules",
        "partitioner.adaptive.partitioning.enable": "rows without a key go round robin by batch",
        "partitioner.availability.timeout.ms": "rows without a key go round robin by batch",
        "retries": "delivery.timeout.ms alone bounds repetition",
    },
}
# Names that begin so and are not listed otherwise.
_WITHOUT_EFFECT_BELOW = {
    "sasl.kerberos.": _KERBEROS,
    "sasl.login.": _OAUTH,
    "sasl.oauthbearer.": _OAUTH,
}

_BYTES_ALWAYS = "keys and values are bytes; convert them with DataFrame functions"
_BOTH_REFUSED = {
    "interceptor.classes": "interceptors are Java code; change rows with DataFrame functions",
    "sasl.client.callback.handler.class": "give user and password in kafka.sasl.jaas.config",
    "sasl.login.callback.handler.class": "give user and password in kafka.sasl.jaas.config",
    "security.providers": "these are Java classes; TLS is Python's",
    "ssl.engine.factory.class": "these are Java classes; TLS is Python's",
    "ssl.provider": "these are Java classes; TLS is Python's",
}
REFUSED: dict[str, dict[str, str]] = {
    READ: {
        **_BOTH_REFUSED,
        "auto.offset.reset": "use the option startingOffsets; a checkpoint always goes before it",
        "enable.auto.commit": "progress is committed by itself when a batch is done",
        "key.deserializer": _BYTES_ALWAYS + ", or values with value.format",
        "value.deserializer": _BYTES_ALWAYS + ", or values with value.format",
    },
    WRITE: {
        **_BOTH_REFUSED,
        "key.serializer": _BYTES_ALWAYS,
        "partitioner.class": "give each row its partition in a column `partition`",
        "partitioner.ignore.keys": "leave the key null, or give the column `partition`",
        "transaction.two.phase.commit.enable": "use delivery=exactly-once",
        "transactional.id": "use delivery=exactly-once, which names its transactions by the query",
        "value.serializer": _BYTES_ALWAYS,
    },
}

# librdkafka's names for what the Java client calls otherwise; the rest of its settings steer
# machinery that does not exist here.
LIBRDKAFKA = {
    "metadata.broker.list": "bootstrap.servers",
    "bootstrap.servers": "bootstrap.servers",
    "client.id": "client.id",
    "client.rack": "client.rack",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.username",
    "sasl.password": "sasl.password",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.key.password": "ssl.key.password",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "socket.timeout.ms": "request.timeout.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.max.bytes": "fetch.max.bytes",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "isolation.level": "isolation.level",
    "check.crcs": "check.crcs",
    "group.id": "group.id",
    "acks": "acks",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "compression.type": "compression.type",
    "batch.size": "batch.size",
    "message.max.bytes": "max.request.size",
    "message.timeout.ms": "delivery.timeout.ms",
    "delivery.timeout.ms": "delivery.timeout.ms",
    "enable.idempotence": "enable.idempotence",
    "transaction.timeout.ms": "transaction.timeout.ms",
}
_PEM_STORES = {
    "ssl.ca.location": "ssl.truststore.type",
    "ssl.certificate.location": "ssl.keystore.type",
}


def translate(
    purpose: str, kafka: Mapping[str, str], librdkafka: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The settings that are used, by the Java client's names, and a warning for each other one."""
    used: dict[str, str] = {}
    warnings = []
    for name, value in librdkafka.items():
        java_name = LIBRDKAFKA.get(name)
        if java_name is None or not (
            java_name in USED[purpose] or java_name in ("sasl.username", "sasl.password")
        ):
            raise BadOption(
                f"librdkafka.{name}: Headrace {purpose}s with a client of its own; of librdkafka's "
                "settings it takes those that Kafka's Java client has too, listed in docs/spark.md"
                + did_you_mean(name, LIBRDKAFKA)
            )
        used[java_name] = value
        if name in _PEM_STORES:
            used[_PEM_STORES[name]] = "PEM"
    for name, value in kafka.items():
        if name in USED[purpose]:
            used[name] = value
            continue
        instead = REFUSED[purpose].get(name)
        if instead is not None:
            raise BadOption(f"kafka.{name} is not supported: {instead}")
        reason = why_without_effect(purpose, name)
        if reason is None:
            raise BadOption(
                f"kafka.{name} is unknown: Kafka's Java "
                f"{'consumer' if purpose == READ else 'producer'} has no setting {name!r}"
                + did_you_mean(name, [*USED[purpose], *WITHOUT_EFFECT[purpose], *REFUSED[purpose]])
            )
        warnings.append(f"kafka.{name} has no effect: {reason}")
    return used, warnings


def why_without_effect(purpose: str, name: str) -> str | None:
    found = WITHOUT_EFFECT[purpose].get(name)
    if found is not None:
        return found
    for beginning, reason in _WITHOUT_EFFECT_BELOW.items():
        if name.startswith(beginning):
            return reason
    # A job that reads and writes often hands one set of options to both.
    other = WRITE if purpose == READ else READ
    if name in USED[other] or name in WITHOUT_EFFECT[other]:
        return f"it is for {'writing' if other == WRITE else 'reading'}"
    return None
