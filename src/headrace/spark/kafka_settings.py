"""How each setting of Kafka's Java client, given as ``kafka.<name>``, is treated.

A setting is used, or accepted without effect for a stated reason, or refused with an alternative.
A name that Kafka does not know is refused. A test compares docs/spark.md with these tables.
"""

from collections.abc import Mapping

from headrace.model.spelling import did_you_mean
from headrace.spark.failures import BadOption

READ, WRITE = "read", "write"

_SECURITY_USED = {
    "security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
    "sasl.jaas.config": "holds the user name and the password",
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "a PEM file",
    "ssl.truststore.certificates": "PEM text",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "a PEM file with key and chain",
    "ssl.keystore.certificate.chain": "PEM text",
    "ssl.keystore.key": "PEM text",
    "ssl.key.password": "decrypts the key",
    "ssl.endpoint.identification.algorithm": "empty turns off the check of the host name",
}
_BOTH_USED = {
    "bootstrap.servers": "brokers to connect to first; host:port, separated by commas",
    "client.id": "identifies the client in the brokers' logs and quotas",
    "request.timeout.ms": "how long one response may take",
    "retry.backoff.ms": "the first pause before a retry",
    "retry.backoff.max.ms": "the longest pause before a retry",
    "metadata.max.age.ms": "the maximum age of topic metadata",
    **_SECURITY_USED,
}
USED: dict[str, dict[str, str]] = {
    READ: {
        **_BOTH_USED,
        "check.crcs": "turns the check of checksums on or off",
        "client.rack": "fetch from a replica in this rack if the broker allows it",
        "default.api.timeout.ms": "how long a request is retried before the query fails",
        "fetch.max.bytes": "the size limit of one fetch",
        "fetch.max.wait.ms": "how long the broker may wait for fetch.min.bytes",
        "fetch.min.bytes": "the minimum size of a response to a fetch",
        "group.id": "the consumer group that progress is committed to",
        "isolation.level": "read_uncommitted or read_committed",
        "max.partition.fetch.bytes": "the size limit of one fetch, 4 MB by default",
    },
    WRITE: {
        **_BOTH_USED,
        "acks": "all, 1 or 0",
        "batch.size": "bytes of records per batch before compression, 1 MB by default",
        "compression.type": "none, gzip, snappy, lz4 or zstd",
        "delivery.timeout.ms": "how long a batch is retried before the query fails",
        "enable.idempotence": "a batch that is sent twice is stored once",
        "max.block.ms": "how long to wait for a topic, or for a transaction to start",
        "max.request.size": "the size limit of a row",
        "transaction.timeout.ms": "the timeout of transactions with delivery=exactly-once",
    },
}

_JAVA = "it names Java code, and this client has no JVM"
_MEMBER = "the query is not a member of its group"
_TELEMETRY = "this client has no metrics; see the query's progress"
_SOCKETS = "the defaults of the operating system are used"
_OAUTH = "OAUTHBEARER is not supported; sasl.mechanism refuses it"
_KERBEROS = "GSSAPI is not supported; sasl.mechanism refuses it"
_LEVEL = "each codec uses the default level of its library"
_IN_TURNS = "rows without a key go to the partitions in turns, batch by batch"
_DIRECT = "rows are batched as they arrive and sent at once"
_BOTH_WITHOUT_EFFECT = {
    "client.dns.lookup": "all addresses of a host name are tried",
    "config.providers": "Spark passes values, not references to them",
    "connections.max.idle.ms": _SOCKETS,
    "enable.metrics.push": _TELEMETRY,
    "metadata.recovery.rebootstrap.trigger.ms": "every retry may start at the bootstrap servers",
    "metadata.recovery.strategy": "every retry may start at the bootstrap servers",
    "metric.reporters": _TELEMETRY,
    "metrics.num.samples": _TELEMETRY,
    "metrics.recording.level": _TELEMETRY,
    "metrics.sample.window.ms": _TELEMETRY,
    "receive.buffer.bytes": _SOCKETS,
    "reconnect.backoff.max.ms": "retry.backoff.max.ms applies",
    "reconnect.backoff.ms": "retry.backoff.ms applies",
    "sasl.login.class": _JAVA,
    "send.buffer.bytes": _SOCKETS,
    "socket.connection.setup.timeout.max.ms": "request.timeout.ms applies",
    "socket.connection.setup.timeout.ms": "request.timeout.ms applies",
    "ssl.cipher.suites": "Python's defaults are used",
    "ssl.enabled.protocols": "TLS 1.2 and newer are used",
    "ssl.keymanager.algorithm": _JAVA,
    "ssl.keystore.password": "a PEM store has no password; ssl.key.password decrypts the key",
    "ssl.protocol": "the newest version that both sides support is used",
    "ssl.secure.random.implementation": _JAVA,
    "ssl.trustmanager.algorithm": _JAVA,
    "ssl.truststore.password": "a PEM store has no password",
}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    READ: {
        **_BOTH_WITHOUT_EFFECT,
        "allow.auto.create.topics": "reading never creates a topic",
        "auto.commit.interval.ms": "progress is committed after each batch",
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
        "buffer.memory": "a task holds one Arrow batch and its requests in flight",
        "compression.gzip.level": _LEVEL,
        "compression.lz4.level": _LEVEL,
        "compression.zstd.level": _LEVEL,
        "linger.ms": _DIRECT,
        "max.in.flight.requests.per.connection": "one request per broker is in flight at a time",
        "metadata.max.idle.ms": "metadata.max.age.ms applies",
        "partitioner.adaptive.partitioning.enable": _IN_TURNS,
        "partitioner.availability.timeout.ms": _IN_TURNS,
        "retries": "only delivery.timeout.ms limits retries",
    },
}
# Prefixes of names that are not listed above.
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
        "auto.offset.reset": "use the option startingOffsets; a checkpoint takes precedence",
        "enable.auto.commit": "progress is committed automatically after each batch",
        "key.deserializer": _BYTES_ALWAYS + ", or values with value.format",
        "value.deserializer": _BYTES_ALWAYS + ", or values with value.format",
    },
    WRITE: {
        **_BOTH_REFUSED,
        "key.serializer": _BYTES_ALWAYS,
        "partitioner.class": "set the partition of each row in a column `partition`",
        "partitioner.ignore.keys": "leave the key null, or add a column `partition`",
        "transaction.two.phase.commit.enable": "use delivery=exactly-once",
        "transactional.id": "use delivery=exactly-once, which names transactions after the query",
        "value.serializer": _BYTES_ALWAYS,
    },
}

# librdkafka's settings that the Java client has too, by librdkafka's names. Its other settings
# are for parts that this client does not have.
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
    """The used settings by the Java client's names, and a warning for each unused setting."""
    used: dict[str, str] = {}
    warnings = []
    for name, value in librdkafka.items():
        java_name = LIBRDKAFKA.get(name)
        if java_name is None or not (
            java_name in USED[purpose] or java_name in ("sasl.username", "sasl.password")
        ):
            raise BadOption(
                f"librdkafka.{name}: Headrace {purpose}s with its own client, which accepts only "
                "those settings of librdkafka that Kafka's Java client has too (see docs/spark.md)"
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
    # A job that reads and writes often passes the same options to both.
    other = WRITE if purpose == READ else READ
    if name in USED[other] or name in WITHOUT_EFFECT[other]:
        return f"it is only for {'writing' if other == WRITE else 'reading'}"
    return None
