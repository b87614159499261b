"""``headrace configs`` with a running broker."""


def test_a_topics_settings_are_read_set_and_unset(headrace, topic):
    headrace("topics", "create", topic)
    headrace("configs", "set", "topic", topic, "retention.ms=5000", "cleanup.policy=compact")
    changed = headrace("configs", "get", "topic", topic, "--changed", "--format", "json").document
    assert {row["key"]: (row["value"], row["source"]) for row in changed} == {
        "retention.ms": ("5000", "DYNAMIC_TOPIC_CONFIG"),
        "cleanup.policy": ("compact", "DYNAMIC_TOPIC_CONFIG"),
    }
    headrace("configs", "set", "topic", topic, "flush.ms=9", "--unset", "cleanup.policy")
    headrace("configs", "unset", "topic", topic, "retention.ms")
    lines = headrace("configs", "get", "topic", topic, "flush.ms", "retention.ms").lines
    assert [line.split() for line in lines[1:]] == [
        ["flush.ms", "9", "DYNAMIC_TOPIC_CONFIG"],
        ["retention.ms", "604800000", "DEFAULT_CONFIG"],
    ]


def test_settings_come_from_a_file(headrace, topic, tmp_path):
    headrace("topics", "create", topic)
    file = tmp_path / "settings.properties"
    file.write_text("# kept for a while\nretention.ms = 5000\nflush.ms=9\n")
    alter = ("--alter", "--entity-type", "topics", "--entity-name", topic)
    headrace("kafka-configs.sh", *alter, "--add-config-file", str(file))
    changed = headrace("configs", "get", "topic", topic, "--changed", "--format", "json").document
    assert {row["key"]: row["value"] for row in changed} == {
        "retention.ms": "5000",
        "flush.ms": "9",
    }
    missing = headrace("configs", "set", "topic", topic, "--file", "missing", status=2)
    assert "missing: No such file" in missing.err
    assert "name a setting" in headrace("configs", "set", "topic", topic, status=2).err


def test_a_bad_value_an_unknown_key_and_an_unknown_topic_are_named(headrace, topic):
    headrace("topics", "create", topic)
    assert (
        "retention.ms"
        in headrace("configs", "set", "topic", topic, "retention.ms=long", status=1).err
    )
    assert "nonsense" in headrace("configs", "get", "topic", topic, "nonsense", status=1).err
    assert (
        "no-topic does not exist" in headrace("configs", "get", "topic", "no-topic", status=1).err
    )
    assert "KEY=VALUE" in headrace("configs", "set", "topic", topic, "novalue", status=2).err
    headrace("configs", "set", "topic", topic, "flush.ms=9")
    ran = headrace("configs", "unset", "topic", topic, "flush.ms", "retention.m", status=1)
    assert (ran.out, f"topic {topic} has no setting retention.m" in ran.err) == ("", True)
    assert "flush.ms" in headrace("configs", "get", "topic", topic, "--changed").out


def test_a_brokers_settings_can_be_set_for_one_and_for_all(headrace):
    [broker] = headrace("configs", "get", "broker", "1", "node.id", "--format", "json").document
    assert broker["value"] == "1"
    headrace("configs", "set", "broker", "default", "log.retention.ms=77000")
    everyone = headrace("configs", "get", "broker", "default", "--format", "json").document
    assert ("log.retention.ms", "77000") in [(row["key"], row["value"]) for row in everyone]
    headrace("configs", "set", "broker", "1", "log.retention.ms=66000")
    assert "66000" in headrace("configs", "get", "broker", "1", "log.retention.ms").out
    headrace("configs", "unset", "broker", "1", "log.retention.ms")
    assert "77000" in headrace("configs", "get", "broker", "1", "log.retention.ms").out
    headrace("configs", "unset", "broker", "default", "log.retention.ms")
    assert "broker 77 does not exist" in headrace("configs", "get", "broker", "77", status=1).err


def test_a_loggers_level_is_changed_while_it_runs(headrace):
    levels = headrace("configs", "get", "broker-logger", "1", "--format", "json").document
    name = levels[0]["key"]
    headrace("configs", "set", "broker-logger", "1", f"{name}=ERROR")
    assert "ERROR" in headrace("configs", "get", "broker-logger", "1", name).out
    headrace("configs", "set", "broker-logger", "1", f"{name}={levels[0]['value']}")
    assert (
        "broker 77 does not exist"
        in headrace("configs", "get", "broker-logger", "77", status=1).err
    )
    for level in ("WARN", "WARNING"):
        headrace("configs", "set", "broker-logger", "1", f"{name}={level}")
        assert "WARN" in headrace("configs", "get", "broker-logger", "1", name).out.split()
    headrace("configs", "set", "broker-logger", "1", f"{name}={levels[0]['value']}")
    headrace("configs", "set", "broker-logger", "1", "headrace=ERROR")
    lines = headrace("configs", "get", "broker-logger", "1", "headrace", "headrace.storage").lines
    assert [line.split()[:2] for line in lines[1:]] == [
        ["headrace", "ERROR"],
        ["headrace.storage", "ERROR"],
    ]
    headrace("configs", "unset", "broker-logger", "1", "headrace")
    refused = headrace(
        "configs", "get", "broker-logger", "1", "-X", "security.protocol=SSL", status=2
    )
    assert "PLAINTEXT listeners only" in refused.err
