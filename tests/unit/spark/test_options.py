"""Options by name: used, without effect, refused."""

import logging

import pytest

from headrace.model.ids import TopicPartition
from headrace.spark import kafka_settings
from headrace.spark.failures import BadOption
from headrace.spark.options import parse_sink, parse_source

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def source(streaming=True, **options):
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_source({**BASE, "subscribe": "t", **given}, streaming=streaming)


def sink(**options):
    return parse_sink({**BASE, **{name.replace("__", "."): v for name, v in options.items()}})


def test_names_are_case_insensitive_as_everywhere_in_spark():
    assert source(MAXOFFSETSPERTRIGGER="5").trigger_rows_max == 5
    assert source(maxoffsetspertrigger="5").trigger_rows_max == 5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"colour": "red"}, "no option 'colour' for reading"),
        ({"topic": "t"}, "topic is an option for writing"),
        ({"isolation__level": "x"}, "use kafka.isolation.level"),
        ({"kafka__colour": "red"}, "kafka.colour is unknown"),
        ({"kafka__auto__offset__reset": "earliest"}, "use the option startingOffsets"),
        ({"kafka__enable__auto__commit": "true"}, "progress is committed automatically"),
        ({"kafka__key__deserializer": "x"}, "keys and values are bytes"),
        ({"kafka__interceptor__classes": "x"}, "interceptors are Java code"),
        ({"kafka__isolation__level": "strict"}, "read_uncommitted or read_committed"),
        ({"kafka__bootstrap__servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"assign": '{"t":[0]}'}, "exactly one of subscribe, subscribePattern and assign"),
        ({"kafka__default__api__timeout__ms": "1m"}, "kafka.default.api.timeout.ms must be"),
        ({"minPartitions": "0"}, "minPartitions must be a positive whole number"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time"),
        ({"limitBy": "chance"}, "limitBy is 'chance'; use backlog or timestamp"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is above"),
        ({"endingOffsets": "latest"}, "endingOffsets is only for batch queries"),
        ({"endingTimestamp": "5"}, "endingTimestamp is only for batch queries"),
        ({"librdkafka__statistics__interval__ms": "5"}, "with its own client"),
        ({"startingTimestamp": "-1"}, "startingTimestamp takes milliseconds since 1970"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'},
            "takes milliseconds since 1970, not -1 for t-0",
        ),
        ({"value__schema": "a INT"}, "need value.format"),
        ({"value__format": "xml"}, "json, avro or string"),
        ({"value__format": "avro"}, "needs a schema"),
        ({"value__format": "string", "value__bad": "topic"}, "needs value.bad.topic"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, reason):
    from headrace.spark.cluster import Cluster

    with pytest.raises(BadOption, match=reason):
        Cluster(source(**options).client)


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"startingOffset": "earliest"}, "startingOffsets"),
        ({"MAXOFFSETPERTRIGGER": "5"}, "maxOffsetsPerTrigger"),
        ({"bootstrap__server": "x"}, "kafka.bootstrap.servers"),
        ({"kafka__isolation_level": "x"}, "isolation.level"),
        ({"kafka__auto__offset__resets": "x"}, "auto.offset.reset"),
        ({"librdkafka__fetch__wait__ms__max": "5"}, "fetch.wait.max.ms"),
    ],
)
def test_a_mistyped_name_is_refused_with_a_suggestion(options, meant):
    with pytest.raises(BadOption) as refused:
        source(**options)

    assert f"(did you mean {meant}?)" in str(refused.value)


def test_a_suggestion_for_the_sink_never_names_an_option_of_the_source():
    with pytest.raises(BadOption, match=r"\(did you mean delivery.batch\?\)"):
        sink(delivery__bach="1")
    with pytest.raises(BadOption) as refused:
        sink(startingOffset="earliest")
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": ""}, "names no topic"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": ""}, "is empty"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": "[a-z&&[^b]].*"}, "spell out"),
        ({"subscribePattern": "[[a-c][x-z]].*"}, "spell out"),
        ({"subscribePattern": r"\p{Alpha}.*"}, "spell out"),
        ({"assign": "t"}, "assign takes JSON"),
        ({"assign": '{"t":[-1]}'}, "assign takes JSON"),
        ({"assign": "{}"}, "names no partition"),
        ({}, "exactly one"),
    ],
)
def test_a_wrong_subscription_is_refused(options, reason):
    with pytest.raises(BadOption, match=reason):
        parse_source({**BASE, **options}, streaming=True)


LETTERS = {"value.format": "string", "value.bad.topic": "dead"}


@pytest.mark.parametrize(
    ("option", "value"), [("subscribe", "a, dead"), ("assign", '{"a":[0],"dead":[1]}')]
)
def test_a_topic_for_bad_records_that_the_query_reads_is_refused(option, value):
    with pytest.raises(BadOption, match=f"value.bad.topic is 'dead', which the option {option} "):
        parse_source({**BASE, option: value, **LETTERS}, streaming=True)


def test_a_topic_for_bad_records_is_no_part_of_the_pattern():
    subscription = parse_source(
        {**BASE, "subscribePattern": "a|dead.*", **LETTERS}, streaming=True
    ).subscription

    assert [subscription.covers(TopicPartition(name, 0)) for name in ("a", "dead", "dead-2")] == [
        True, False, True,
    ]  # fmt: skip


def test_bootstrap_servers_are_required():
    with pytest.raises(BadOption, match="kafka.bootstrap.servers is missing"):
        parse_source({"subscribe": "t"}, streaming=True)


def test_a_setting_without_effect_is_accepted_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        source(kafka__session__timeout__ms="5", kafka__linger__ms="5")

    assert "kafka.session.timeout.ms has no effect: the query is not a member" in caplog.text
    assert "kafka.linger.ms has no effect: it is only for writing" in caplog.text


def test_librdkafkas_names_are_translated():
    options = source(
        librdkafka__fetch__message__max__bytes="1000", librdkafka__isolation__level="read_committed"
    )

    assert options.fetch.size_max == 1000
    assert options.fetch.read_committed


def test_an_option_for_streams_is_accepted_in_a_batch_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        source(streaming=False, maxOffsetsPerTrigger="5")

    assert "maxOffsetsPerTrigger has no effect in a batch query" in caplog.text


def test_durations_have_units():
    assert source(maxTriggerDelay="90s").trigger_delay_ms_max == 90_000
    assert source(maxTriggerDelay="2m").trigger_delay_ms_max == 120_000
    assert source(maxTriggerDelay="250").trigger_delay_ms_max == 250
    assert source().trigger_delay_ms_max == 900_000


def test_exactly_once_needs_all_acknowledgements():
    assert sink(delivery="exactly-once").exactly_once
    with pytest.raises(BadOption, match="kafka.acks must be all"):
        sink(delivery="exactly-once", kafka__acks="1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka__acks": "2"}, "all, 1 or 0"),
        ({"kafka__max__block__ms": "1m"}, "kafka.max.block.ms must be a whole number"),
        ({"kafka__compression__type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"kafka__partitioner__class": "x"}, "in a column `partition`"),
        ({"kafka__transactional__id": "x"}, "use delivery=exactly-once"),
        ({"startingOffsets": "earliest"}, "startingOffsets is an option for reading"),
    ],
)
def test_a_wrong_option_of_the_sink_is_refused(options, reason):
    with pytest.raises(BadOption, match=reason):
        sink(**options)


def test_security_comes_from_the_java_names():
    security = source(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config=(
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="ann" password="a\\"b;c";'
        ),
        kafka__ssl__endpoint__identification__algorithm="",
    ).client.security

    assert (security.username, security.password) == ("ann", 'a"b;c')
    assert security.uses_tls and security.uses_sasl and not security.check_hostname


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka__security__protocol": "HTTP"}, "PLAINTEXT, SSL"),
        ({"kafka__security__protocol": "SASL_PLAINTEXT"}, "'GSSAPI'"),
        (
            {"kafka__security__protocol": "SASL_PLAINTEXT", "kafka__sasl__mechanism": "PLAIN"},
            "must name a user",
        ),
        (
            {"kafka__security__protocol": "SSL", "kafka__ssl__truststore__location": "t.jks"},
            "which only Java reads",
        ),
    ],
)
def test_unsupported_security_is_refused(options, reason):
    with pytest.raises(BadOption, match=reason):
        source(**options)


@pytest.mark.parametrize("purpose", ["read", "write"])
def test_every_setting_is_treated_in_one_way(purpose):
    used, silent, refused = (
        set(table[purpose])
        for table in (kafka_settings.USED, kafka_settings.WITHOUT_EFFECT, kafka_settings.REFUSED)
    )
    assert not used & silent and not used & refused and not silent & refused
