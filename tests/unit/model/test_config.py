"""The settings of a broker: accepted and refused values, warnings, effective values."""

import pytest

from headrace.model.config import (
    BrokerConfig,
    Listener,
    check_dynamic,
    check_group_overrides,
    parse_properties,
    without_effect,
)
from headrace.model.errors import ConfigError
from headrace.model.settings.headrace import NODE_DEFAULTS
from headrace.model.settings.kafka import BROKER, Row

# The file that Apache Kafka 4.3 ships for one node, without its comments.
KAFKA_43_SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def refusal(values, **options):
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.parse(values, **options)
    return str(refused.value)


def test_without_a_file_a_standalone_node_has_kafkas_defaults():
    config = BrokerConfig.parse({})

    assert config.warnings == []
    assert config.node_id == 1
    assert not config.node_id_is_given
    assert config.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)
    assert config.advertised_listeners == config.listeners
    assert config.int("message.max.bytes") == 1_048_588
    assert config.list("log.dirs") == ["/tmp/kafka-logs"]
    assert config.bool("auto.create.topics.enable") is True
    assert config.float("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.optional_str("broker.rack") is None
    for name in NODE_DEFAULTS:
        if name.endswith((".factor", ".min.isr")):
            assert config.int(name) == 1


def test_the_file_that_kafka_ships_is_accepted_unchanged():
    config = BrokerConfig.parse(
        parse_properties(KAFKA_43_SERVER_PROPERTIES, "server.properties"), strict=True
    )

    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.inter_broker_listener == "PLAINTEXT"
    assert config.warnings == []
    assert any("CONTROLLER://:9093 is not opened" in note for note in config.notes)


def test_reading_an_unknown_setting_is_a_programming_error():
    with pytest.raises(KeyError, match=r"no\.such\.setting"):
        BrokerConfig.parse({}).int("no.such.setting")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("log.segment.bytes", "abc", "expected an integer from 1048576 to 2147483647"),
        ("log.segment.bytes", "1048575", "expected an integer from 1048576 to 2147483647"),
        ("log.segment.bytes", "1_073_741_824", "expected an integer"),
        ("log.segment.bytes", "9999999999", "expected an integer"),
        ("log.segment.bytes", "9" * 5000, "expected an integer"),
        ("log.segment.bytes", "", "expected an integer"),
        ("log.retention.bytes", "1e9", "expected an integer from -9223372036854775808 to"),
        ("offsets.topic.replication.factor", "40000", "expected an integer from 1 to 32767"),
        ("compression.gzip.level", "0", "expected an integer from 1 to 9, or -1"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "expected a number from 0 to 1"),
        ("log.cleaner.min.cleanable.ratio", "NaN", "expected a number from 0 to 1"),
        ("auto.create.topics.enable", "yes", "expected true or false"),
        ("log.cleanup.policy", "shred", "expected a list of compact, delete"),
        ("log.cleanup.policy", "delete,delete", "without empty or repeated entries"),
        ("log.cleanup.policy", "delete,,compact", "without empty or repeated entries"),
        ("compression.type", "GZIP", "expected one of uncompressed, zstd, lz4"),
        ("log.message.timestamp.type", "createtime", "expected one of CreateTime, LogAppendTime"),
        ("log.dirs", "", "expected a list with at least one entry"),
        ("max.connections.per.ip.overrides", "host", "expected host:limit"),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_and_the_expected_value(name, text, expected):
    message = refusal({name: text})

    assert message.startswith(f"{name}={text}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.segment.bytes", " +1073741824 ", 1_073_741_824),
        ("compression.gzip.level", "-1", -1),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleaner.min.cleanable.ratio", ".25f", 0.25),
        ("log.cleanup.policy", "compact , delete", ["compact", "delete"]),
        ("log.cleanup.policy", "", []),
        ("group.consumer.migration.policy", "Upgrade", "Upgrade"),
    ],
)
def test_values_are_read_as_kafka_reads_them(name, text, value):
    assert BrokerConfig.parse({name: text}).value(name) == value


def test_an_error_does_not_contain_a_secret():
    # No rule refuses a password today; the message is what must never show one.
    from headrace.model.settings.values import parse_value

    with pytest.raises(ConfigError) as refused:
        parse_value("ssl.key.password", "", Row("password", None, "", "", "tls"))
    assert "(hidden)" in str(refused.value)


def test_an_unknown_name_produces_a_warning_with_the_most_similar_name():
    config = BrokerConfig.parse({"num.partitons": "3"})

    assert config.warnings == [
        "num.partitons is not a broker setting (did you mean num.partitions?); it has no effect"
    ]
    assert config.int("num.partitions") == 1
    assert "num.partitions" in refusal({"num.partitons": "3"}, strict=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.ms", "but a topic setting; the broker setting is log.retention.ms"),
        ("request.required.acks", "but a producer setting, now named acks"),
        ("fetch.message.max.bytes", "but a consumer setting, now named max.partition.fetch.bytes"),
        ("entirely.made.up", "is not a broker setting; it has no effect"),
    ],
)
def test_a_topic_or_client_setting_produces_a_warning_that_says_so(name, hint):
    (warning,) = BrokerConfig.parse({name: "1"}).warnings
    assert hint in warning


@pytest.mark.parametrize(
    ("old", "text", "successor", "value"),
    [
        ("log.delete.delay.ms", "5", "log.segment.delete.delay.ms", 5),
        ("log.cleanup.interval.mins", "10", "log.retention.check.interval.ms", 600_000),
        ("max.message.size", "2000000", "message.max.bytes", 2_000_000),
        (
            "log.message.timestamp.difference.max.ms",
            "7",
            "log.message.timestamp.before.max.ms",
            7,
        ),
        ("log.message.timestamp.difference.max.ms", "7", "log.message.timestamp.after.max.ms", 7),
    ],
)
def test_an_old_name_counts_as_its_successor_with_a_warning(old, text, successor, value):
    config = BrokerConfig.parse({old: text})

    assert config.int(successor) == value
    assert f"{old} is an old name: using {successor}={value}" in config.warnings


def test_the_present_name_takes_precedence_over_the_old_one():
    config = BrokerConfig.parse({"log.delete.delay.ms": "5", "log.segment.delete.delay.ms": "6"})

    assert config.int("log.segment.delete.delay.ms") == 6
    assert any("is set too and takes precedence" in warning for warning in config.warnings)


def test_an_invalid_value_of_an_old_name_is_refused_with_that_name():
    assert refusal({"log.delete.delay.ms": "soon"}).startswith("log.delete.delay.ms=soon: ")


def test_host_name_and_port_become_a_listener():
    config = BrokerConfig.parse({"port": "9095", "host.name": "::1", "advertised.host.name": "db"})

    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://[::1]:9095"]
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://db:9095"]
    # A port alone leaves the host as it was.
    assert str(BrokerConfig.parse({"port": "9095"}).listeners[0]) == "PLAINTEXT://127.0.0.1:9095"


@pytest.mark.parametrize(
    "name", ["replica.lag.max.messages", "inter.broker.protocol.version", "zookeeper.set.acl"]
)
def test_an_old_name_without_a_successor_produces_a_warning(name):
    config = BrokerConfig.parse({name: "true" if name.endswith("acl") else "1"})
    assert any(line.startswith(f"{name} has no effect: ") for line in config.warnings)


def test_a_setting_without_effect_produces_a_message_with_the_reason():
    config = BrokerConfig.parse({"num.io.threads": "16", "request.timeout.ms": "2"})

    assert any(line.startswith("request.timeout.ms has no effect: ") for line in config.warnings)
    # A thread count is not worth a warning: the operator loses nothing.
    assert any(line.startswith("num.io.threads has no effect: ") for line in config.notes)


def test_settings_of_a_cluster_are_refused_by_name():
    voters = "1@a:9093,2@b:9093,3@c:9093"
    assert "KRaft clusters are not supported" in refusal({"controller.quorum.voters": voters})
    assert "process.roles" in refusal({"process.roles": "controller"})
    elsewhere = {"process.roles": "broker", "controller.quorum.bootstrap.servers": "c:9093"}
    assert "a controller on another node" in refusal(elsewhere)


def test_internal_topics_have_the_replicas_of_kafka_in_a_cluster_unless_settings_say_otherwise():
    alone = BrokerConfig.parse({})
    member = BrokerConfig.parse({"zookeeper.connect": "zk:2181/a"})
    for name, replicas in [
        ("offsets.topic.replication.factor", 3),
        ("transaction.state.log.replication.factor", 3),
        ("transaction.state.log.min.isr", 2),
    ]:
        assert (alone.int(name), member.int(name)) == (1, replicas)
        assert member.default_text(name) == str(replicas)
        given = {"zookeeper.connect": "zk:2181", name: "2"}
        assert BrokerConfig.parse(given).int(name) == 2
    assert member.is_on_zookeeper and not alone.is_on_zookeeper
    assert not BrokerConfig.parse({"zookeeper.connect": ""}).is_on_zookeeper


def test_a_listener_for_the_controller_alone_is_refused():
    assert "control.plane.listener.name=CONTROL" in refusal(
        {"control.plane.listener.name": "CONTROL"}
    )


def test_a_node_with_an_authorizer_does_not_start():
    assert "authorization is not supported. Remove the setting" in refusal(
        {"authorizer.class.name": "x.Acl"}
    )


def test_node_id_and_broker_id_must_be_equal():
    assert BrokerConfig.parse({"broker.id": "0"}).node_id == 0
    both = BrokerConfig.parse({"broker.id": "7", "node.id": "7"})
    assert both.node_id == both.int("broker.id") == 7
    assert both.node_id_is_given
    assert "broker.id=7 differs from node.id=8" in refusal({"broker.id": "7", "node.id": "8"})
    assert refusal({"node.id": "-1"}).startswith("node.id=-1: ")
    assert refusal({"broker.id": "-2"}).startswith("broker.id=-2: ")
    assert not BrokerConfig.parse({"broker.id": "-1"}).node_id_is_given


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "24"}, 24 * 3_600_000),
        ({"log.retention.hours": "24", "log.retention.minutes": "300"}, 300 * 60_000),
        ({"log.retention.minutes": "300", "log.retention.ms": "1000"}, 1000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_retention_counts(given, milliseconds):
    assert BrokerConfig.parse(given).int("log.retention.ms") == milliseconds


def test_coarser_units_and_log_dir_count_if_nothing_finer_is_set():
    config = BrokerConfig.parse(
        {
            "log.roll.hours": "2",
            "log.roll.jitter.hours": "1",
            "log.flush.scheduler.interval.ms": "3000",
            "log.dir": "/one",
        }
    )
    assert config.int("log.roll.ms") == 2 * 3_600_000
    assert config.int("log.roll.jitter.ms") == 3_600_000
    assert config.int("log.flush.interval.ms") == 3000
    assert config.list("log.dirs") == ["/one"]
    assert BrokerConfig.parse({"log.dir": "/one", "log.dirs": "/a,/b"}).list("log.dirs") == [
        "/a",
        "/b",
    ]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"log.retention.ms": "0"}, ["log.retention.ms=0"]),
        ({"log.roll.ms": "0"}, ["log.roll.ms=0"]),
        ({"queued.max.request.bytes": "10"}, ["queued.max.request.bytes=10", "socket.request"]),
        ({"max.connections.per.ip": "0"}, ["max.connections.per.ip=0"]),
    ],
)
def test_combinations_that_kafka_refuses_are_refused(values, names):
    message = refusal(values)
    assert all(name in message for name in names)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (
            {"log.segment.bytes": "1048576"},
            ["log.segment.bytes=1048576", "message.max.bytes=1048588"],
        ),
        ({"log.index.size.max.bytes": "8"}, ["log.index.size.max.bytes=8", "log.segment.bytes"]),
        ({"log.retention.bytes": "100"}, ["log.retention.bytes=100", "log.segment.bytes"]),
        ({"log.retention.ms": "100"}, ["log.retention.check.interval.ms", "log.retention.ms=100"]),
        ({"message.max.bytes": "200000000"}, ["socket.request.max.bytes", "message.max.bytes"]),
    ],
)
def test_conflicting_limits_produce_a_warning_with_both_names(values, names):
    warnings = BrokerConfig.parse(values).warnings
    assert any(all(name in warning for name in names) for warning in warnings), warnings


def test_several_listeners_each_with_its_own_advertised_address():
    config = BrokerConfig.parse(
        {
            "listeners": "INSIDE://[::1]:9092, OUTSIDE://0.0.0.0:0, ALL://:9094",
            "advertised.listeners": "inside://[fe80::1%eth0]:9092,OUTSIDE://kafka.example:443,ALL://h:1",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT, outside:plaintext, ALL:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    assert config.listeners == (
        Listener("INSIDE", "::1", 9092, "PLAINTEXT"),
        Listener("OUTSIDE", "0.0.0.0", 0, "PLAINTEXT"),
        Listener("ALL", "", 9094, "PLAINTEXT"),
    )
    assert config.advertised_listeners[0] == Listener("INSIDE", "fe80::1%eth0", 9092, "PLAINTEXT")
    assert config.inter_broker_listener == "INSIDE"


def test_every_interface_is_advertised_as_this_machine():
    config = BrokerConfig.parse({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    assert config.advertised_listeners == (Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),)


def test_ipv4_and_ipv6_may_share_a_port_and_others_may_not():
    protocols = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
    BrokerConfig.parse({"listeners": "A://127.0.0.1:9092,B://[::1]:9092", **protocols})
    BrokerConfig.parse({"listeners": "A://:0,B://:0", **protocols})
    message = refusal({"listeners": "A://127.0.0.1:9092,B://127.0.0.2:9092", **protocols})
    assert "have the same port" in message


@pytest.mark.parametrize(
    ("listeners", "reason"),
    [
        ("PLAINTEXT://localhost", "expected NAME://host:port"),
        ("localhost:9092", "expected NAME://host:port"),
        ("PLAINTEXT://::1:9092", "an IPv6 host in brackets"),
        ("://localhost:9092", "expected NAME://host:port"),
        ("PLAINTEXT://localhost:65536", "expected a port from 0 to 65535"),
        ("PLAINTEXT://localhost:-1", "expected NAME://host:port"),
        ("PLAINTEXT://a:1,PLAINTEXT://a:2", "listener PLAINTEXT appears twice"),
        ("SSL://:9093", "listener SSL uses TLS, which is not supported"),
        ("SASL_PLAINTEXT://:9093", "listener SASL_PLAINTEXT uses SASL, which is not supported"),
        ("MINE://:9093", "has no protocol for MINE"),
    ],
)
def test_a_listener_that_cannot_be_opened_is_refused_by_name(listeners, reason):
    message = refusal({"listeners": listeners})
    assert message.startswith("listeners")
    assert reason in message


def test_advertised_listeners_must_be_listeners_that_clients_can_reach():
    one = {"listeners": "PLAINTEXT://:9092"}
    assert "can reach" in refusal({**one, "advertised.listeners": "PLAINTEXT://0.0.0.0:9092"})
    two = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,X:PLAINTEXT"}
    assert "no listener has that name" in refusal({**one, **two, "advertised.listeners": "X://h:1"})
    assert "inter.broker.listener.name=Y" in refusal({**one, "inter.broker.listener.name": "Y"})


def test_a_node_with_only_controller_listeners_is_refused():
    values = {"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}
    assert "controller.listener.names" in refusal(values)


def test_limits_of_one_listener_are_its_own():
    name = "listener.name.plaintext.max.connections"
    config = BrokerConfig.parse({name: "5"}, strict=True)
    assert config.warnings == []
    assert config.limit_of_listener("PLAINTEXT", "max.connections") == 5
    assert config.limit_of_listener("OTHER", "max.connections") == 2**31 - 1
    assert config.with_dynamic({}).limit_of_listener("PLAINTEXT", "max.connections") == 5
    assert refusal({name: "few"}).startswith(f"{name}=few: ")


def test_settings_of_one_listener_without_effect_produce_a_message():
    for name in ("listener.name.gone.max.connections", "listener.name.plaintext.num.io.threads"):
        (line,) = (config := BrokerConfig.parse({name: "5"})).warnings + config.notes
        assert line.startswith(f"{name} has no effect: ")


def test_limits_of_one_host():
    config = BrokerConfig.parse({"max.connections.per.ip.overrides": "127.0.0.1:3, [::1]:4"})
    assert config.connection_limits_by_host() == {"127.0.0.1": 3, "::1": 4}


def test_dynamic_settings_override_the_file_until_they_are_deleted():
    file_config = BrokerConfig.parse({"log.retention.hours": "24", "message.max.bytes": "2000000"})
    config = file_config.with_dynamic(
        {"log.retention.ms": "5000000", "message.max.bytes": "3000000"}
    )

    assert config.int("log.retention.ms") == 5_000_000
    assert config.int("message.max.bytes") == 3_000_000
    assert config.node_id == file_config.node_id
    assert config.listeners == file_config.listeners
    assert file_config.int("message.max.bytes") == 2_000_000
    again = config.with_dynamic({})
    assert again.int("log.retention.ms") == 24 * 3_600_000
    assert again.int("message.max.bytes") == 2_000_000


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("num.partitions", "3", "cannot be changed at run time"),
        ("listeners", "PLAINTEXT://:1", "cannot be changed at run time"),
        ("no.such.name", "3", "is not a broker setting"),
        ("log.cleaner.backoff.ms", "-1", "expected an integer from 0"),
        ("ssl.key.password", "p", "TLS listeners come with a later release"),
        ("ssl.keystore.type", "PEM", "TLS listeners come with a later release"),
        ("ssl.truststore.location", "/a", "TLS listeners come with a later release"),
        ("sasl.login.refresh.window.factor", "x", "expected a number"),
        ("log.retention.ms", "0", "expected -1 for no limit"),
    ],
)
def test_a_change_that_cannot_be_made_while_running_is_refused_by_name(name, text, reason):
    with pytest.raises(ConfigError) as refused:
        check_dynamic(BrokerConfig.parse({}), {name: text}, for_all=False)
    assert str(refused.value).startswith(name)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.io.threads", "4"),
        ("sasl.kerberos.min.time.before.relogin", "58000"),
        ("ssl.keymanager.algorithm", "PKIX"),
    ],
)
def test_a_dynamic_setting_without_effect_is_accepted(name, text):
    check_dynamic(BrokerConfig.parse({}), {name: text}, for_all=False)
    (line,) = without_effect({name: text}, BROKER)
    assert line.startswith(f"{name} has no effect: ")


def test_a_per_broker_setting_cannot_be_set_for_all_brokers():
    config = BrokerConfig.parse({})
    check_dynamic(config, {"cordoned.log.dirs": "/a"}, for_all=False)
    with pytest.raises(ConfigError, match="belongs to one broker"):
        check_dynamic(config, {"cordoned.log.dirs": "/a"}, for_all=True)


@pytest.mark.parametrize(
    ("limit", "setting"),
    [
        ("group.consumer.min.assignment.interval.ms", "consumer.assignment.interval.ms"),
        ("group.consumer.max.assignment.interval.ms", "consumer.assignment.interval.ms"),
        ("group.consumer.min.heartbeat.interval.ms", "consumer.heartbeat.interval.ms"),
        ("group.consumer.max.heartbeat.interval.ms", "consumer.heartbeat.interval.ms"),
        ("group.consumer.min.session.timeout.ms", "consumer.session.timeout.ms"),
        ("group.consumer.max.session.timeout.ms", "consumer.session.timeout.ms"),
    ],
)
def test_the_broker_limits_what_a_group_may_set(limit, setting):
    value = "50000" if "session" in setting else "10000"
    beyond = int(value) + (1 if ".min." in limit else -1)
    check_group_overrides(BrokerConfig.parse({limit: value}), {setting: value})
    with pytest.raises(ConfigError, match=f"expected at .* {limit}={beyond}"):
        check_group_overrides(BrokerConfig.parse({limit: str(beyond)}), {setting: value})


def test_a_group_keeps_within_the_limits_of_the_broker():
    config = BrokerConfig.parse({})
    check_group_overrides(config, {"consumer.session.timeout.ms": "50000"})
    check_group_overrides(config, {"share.auto.offset.reset": "by_duration:P1DT2H"})
    for overrides, reason in [
        ({"consumer.session.timeout.ms": "1"}, "group.consumer.min.session.timeout.ms=45000"),
        ({"consumer.session.timeout.ms": "99999"}, "group.consumer.max.session.timeout.ms=60000"),
        ({"streams.num.standby.replicas": "9"}, "group.streams.max.standby.replicas=2"),
        ({"share.auto.offset.reset": "by_duration:P"}, "expected latest, earliest or"),
        ({"session.timeout.ms": "1"}, "is not a group setting"),
    ]:
        with pytest.raises(ConfigError) as refused:
            check_group_overrides(config, overrides)
        assert reason in str(refused.value)
