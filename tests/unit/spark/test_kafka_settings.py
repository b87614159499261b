"""docs/spark.md names every option and every setting of Kafka's client."""

from pathlib import Path

import pytest

from headrace.spark import kafka_settings
from headrace.spark.options import READ_OPTIONS, WRITE_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()

# The options in the documentation of Spark's Kafka source and sink.
OPTIONS_OF_THE_JAR = (
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "endingOffsets", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "limitBy", "minPartitions", "maxRecordsPerPartition", "groupIdPrefix",
    "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy", "topic",
    "spark.kafka.consumer.cache", "spark.kafka.consumer.fetchedData.cache",
    "spark.kafka.producer.cache", "spark.kafka.clusters",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
    "spark.security.credentials.kafka.enabled",
)  # fmt: skip

# The names that ConsumerConfig and ProducerConfig of kafka-clients 4.3.1 define, without those
# that begin with sasl.kerberos, sasl.login and sasl.oauthbearer.
_CONSUMER_NAMES = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs
client.dns.lookup client.id client.rack config.providers connections.max.idle.ms
default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes
internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class
sasl.jaas.config sasl.login.callback.handler.class sasl.login.class sasl.mechanism
security.protocol security.providers send.buffer.bytes session.timeout.ms
share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type value.deserializer
"""
CONSUMER = _CONSUMER_NAMES.split()
_PRODUCER_NAMES = """
acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id
compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers connections.max.idle.ms delivery.timeout.ms enable.idempotence
enable.metrics.push interceptor.classes key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.age.ms metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.login.callback.handler.class
sasl.login.class sasl.mechanism security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type transaction.timeout.ms
transaction.two.phase.commit.enable transactional.id value.serializer
"""
PRODUCER = _PRODUCER_NAMES.split()


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS, *WRITE_OPTIONS, *OPTIONS_OF_THE_JAR}))
def test_every_option_is_documented(name):
    assert f"`{name}" in PAGE


@pytest.mark.parametrize(("purpose", "names"), [("read", CONSUMER), ("write", PRODUCER)])
def test_every_setting_of_the_java_client_is_treated_in_one_way_and_documented(purpose, names):
    for name in names:
        treatments = [
            name in kafka_settings.USED[purpose],
            name in kafka_settings.REFUSED[purpose],
            name not in kafka_settings.REFUSED[purpose]
            and name not in kafka_settings.USED[purpose]
            and kafka_settings.why_without_effect(purpose, name) is not None,
        ]
        assert sum(treatments) == 1, name
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("purpose", ["read", "write"])
def test_every_setting_is_known_to_kafka(purpose):
    known = set(CONSUMER if purpose == "read" else PRODUCER)
    for table in (kafka_settings.USED, kafka_settings.WITHOUT_EFFECT, kafka_settings.REFUSED):
        assert set(table[purpose]) <= known


def test_librdkafkas_names_are_listed():
    for name in kafka_settings.LIBRDKAFKA:
        assert f"`{name}`" in PAGE
