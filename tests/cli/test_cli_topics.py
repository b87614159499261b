"""``headrace topics`` with a running broker."""

import pytest


def test_a_topic_is_created_listed_described_and_deleted(headrace, topic):
    assert headrace("topics", "create", topic, "-p", "3", "-c", "retention.ms=1000").lines[1:] == [
        f"{topic}  created"
    ]
    assert topic in headrace("topics", "list", "--names").lines
    [row] = [row for row in headrace("topics", "list", "--format", "json").document
             if row["name"] == topic]  # fmt: skip
    assert row == {"name": topic, "partitions": 3, "replicas": 1}
    assert headrace("topics", "delete", topic).lines[1:] == [f"{topic}  deleted"]
    assert topic not in headrace("topics", "list", "--names").lines


def test_describe_prints_the_columns_of_kafka(headrace, topic):
    headrace("topics", "create", topic, "-p", "2", "-c", "retention.ms=1000")
    title, columns, *rows = headrace("topics", "describe", topic).lines
    assert title.startswith(f"Topic: {topic}  TopicId: ")
    assert title.endswith("PartitionCount: 2  ReplicationFactor: 1  Configs: retention.ms=1000")
    assert columns.split() == ["Partition", "Leader", "Replicas", "Isr"]
    assert [row.split()[0] for row in rows] == ["0", "1"]


def test_describe_prints_one_json_document(headrace, topic):
    headrace("topics", "create", topic, "-p", "2")
    [described] = headrace("topics", "describe", topic, "--format", "json").document
    assert described["name"] == topic
    assert described["partition_count"] == 2
    leader = described["partitions"][1]["leader"]
    assert described["partitions"][1] == {
        "partition": 1,
        "leader": leader,
        "replicas": [leader],
        "isr": [leader],
    }


def test_a_topic_id_is_printed_as_on_disk(headrace, topic, broker):
    names = [f"{topic}-{number}" for number in range(12)]
    headrace("topics", "create", *names)
    for described in headrace("topics", "describe", *names, "--format", "json").document:
        file = broker.data / f"{described['name']}-0" / "partition.metadata"
        [dump] = headrace("dump-log", str(file), "--format", "json").document
        assert dump["entries"] == [{"topic_id": described["topic_id"]}]
        assert described["topic_id"] in headrace("topics", "describe", described["name"]).out


def test_one_row_that_fails_makes_the_command_fail(headrace, topic):
    headrace("topics", "create", topic)
    ran = headrace("topics", "create", topic, f"{topic}-b", "--format", "json", status=1)
    statuses = {row["topic"]: (row["status"], row["error"]) for row in ran.document}
    assert statuses == {
        topic: ("failed", "TOPIC_ALREADY_EXISTS"),
        f"{topic}-b": ("created", None),
    }
    headrace("topics", "create", topic, "--if-not-exists")


def test_a_topic_that_does_not_exist_is_named(headrace, topic):
    for command in ("topics describe", "topics offsets", "configs get topic", "consume"):
        ran = headrace(*command.split(), topic, status=1)
        assert ran.err.startswith(f"headrace: topic {topic} does not exist at "), command
    assert "UNKNOWN_TOPIC_OR_PARTITION" in headrace("topics", "delete", topic, status=1).out
    assert "unchanged" in headrace("topics", "delete", topic, "--if-exists").out


def test_topics_are_chosen_by_a_regular_expression(headrace, topic):
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-other"]
    headrace("topics", "create", *names)
    pattern = f"{topic}-[ab]"
    assert headrace("topics", "list", "--names", "--matching", pattern).lines == names[:2]
    ran = headrace("topics", "describe", "--matching", pattern, "--format", "json")
    assert [one["name"] for one in ran.document] == names[:2]
    ran = headrace("verify-replicas", "--matching", pattern, "--format", "json")
    assert ran.document["partitions"] == 2
    # Kafka's script, where a topic is a pattern too.
    assert headrace("kafka-topics.sh", "--list", "--topic", names[0]).lines == names[:1]
    assert headrace("kafka-topics.sh", "--list", "--topic", "missing").out == ""
    headrace("kafka-topics.sh", "--delete", "--topic", pattern)
    assert headrace("topics", "list", "--names", "--matching", f"{topic}.*").lines == names[2:]
    ran = headrace("topics", "delete", "--matching", pattern, status=1)
    assert f"no topic matches '{pattern}'" in ran.err
    headrace("topics", "delete", "--matching", pattern, "--if-exists")
    assert "--matching '['" in headrace("topics", "list", "--matching", "[", status=2).err
    assert "not both" in headrace("topics", "describe", topic, "--matching", ".", status=2).err
    assert "name a topic" in headrace("topics", "delete", "--yes", status=2).err


def test_a_pattern_never_deletes_internal_topics(headrace, topic):
    headrace("topics", "create", topic)
    headrace("consume", topic, "--group", f"{topic}-group", "--from-beginning", "-e")
    assert "__consumer_offsets" in headrace("topics", "list", "--names").lines
    ran = headrace("topics", "delete", "--matching", "__consumer.*", status=1)
    assert "no topic matches" in ran.err


def test_replicas_are_assigned_by_hand(headrace, topic):
    headrace("kafka-topics.sh", "--create", "--topic", topic, "--replica-assignment", "1,1")
    assert len(headrace("topics", "describe", topic).lines) == 4
    headrace("topics", "alter", topic, "-p", "3", "--replica-assignment", "1,1,1")
    assert len(headrace("topics", "describe", topic).lines) == 5
    for wrong, said in (("1:x", "expected broker IDs"), ("1:1", "has a broker twice")):
        ran = headrace("topics", "create", f"{topic}-b", "--replica-assignment", wrong, status=2)
        assert said in ran.err
    both = ("--replica-assignment", "1", "-p", "1")
    assert "give --replica" in headrace("topics", "create", f"{topic}-b", *both, status=2).err
    ran = headrace("topics", "alter", topic, "-p", "5", "--replica-assignment", "1", status=2)
    assert "names 1 partition, but --partitions is 5" in ran.err


def test_a_dry_run_creates_nothing(headrace, topic):
    assert "would be created" in headrace("topics", "create", topic, "--dry-run").out
    assert topic not in headrace("topics", "list", "--names").lines


def test_partitions_grow_with_a_warning_and_never_shrink(headrace, topic):
    headrace("topics", "create", topic, "-p", "2")
    grown = headrace("topics", "alter", topic, "--partitions", "4")
    assert "keys" in grown.err and "4 partitions" in grown.out
    refused = headrace("topics", "alter", topic, "-p", "3", status=1)
    assert "INVALID_PARTITIONS" in refused.out
    assert refused.err == "", "no warning about a change that was refused"


def test_offsets_are_shown_by_start_end_and_time(headrace, topic):
    headrace("topics", "create", topic, "-p", "2")
    headrace("produce", topic, "-p", "1", stdin=b"a\nb\nc\n")
    rows = headrace("topics", "offsets", topic, "--format", "json").document
    assert rows == [
        {"topic": topic, "partition": 0, "earliest": 0, "latest": 0},
        {"topic": topic, "partition": 1, "earliest": 0, "latest": 3},
    ]
    [row] = headrace("topics", "offsets", f"{topic}:1", "--time", "1h", "--format", "json").document
    assert row["offset"] == 0 and row["timestamp"] > 0
    [row] = headrace(
        "topics", "offsets", f"{topic}:1", "--time", "2999-01-01", "--format", "json"
    ).document
    assert row["offset"] is None
    lines = headrace("topics", "offsets", topic, "--time", "2999-01-01").lines
    assert [line.split() for line in lines] == [
        ["TOPIC", "PARTITION", "OFFSET"],
        [topic, "0", "-"],
        [topic, "1", "-"],
    ]
    [row] = headrace(
        "topics", "offsets", f"{topic}:1", "--time", "max-timestamp", "--format", "json"
    ).document
    assert row["offset"] in (0, 1, 2)
    assert "no partition 7" in headrace("topics", "offsets", f"{topic}:7", status=1).err
    assert "max-timestamp" in headrace("topics", "offsets", topic, "--time", "noon", status=2).err
    ran = headrace("topics", "delete-records", f"{topic}:1", "--before", "99", status=1)
    assert "OFFSET_OUT_OF_RANGE  99 is beyond the end" in ran.out


def test_offsets_of_the_topics_that_exist_are_shown_beside_the_error(headrace, topic):
    headrace("topics", "create", topic)
    for arguments in ((topic, "missing"), ("missing", topic), (f"{topic}:0", f"{topic}:7")):
        ran = headrace("topics", "offsets", *arguments, status=1)
        assert [line.split() for line in ran.lines[1:]] == [[topic, "0", "0", "0"]]
        assert "does not exist" in ran.err or "no partition 7" in ran.err
        ran = headrace("topics", "offsets", *arguments, "--format", "json", status=1)
        assert [row["topic"] for row in ran.document] == [topic]
    assert headrace("topics", "offsets", "missing", status=1).out == ""


def test_a_topic_to_delete_that_does_not_exist_is_named_with_advice(headrace):
    [row] = headrace("topics", "delete", "nope", "--format", "json", status=1).document
    assert row["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert "topic nope does not exist" in row["detail"] and "headrace topics list" in row["detail"]


@pytest.mark.parametrize("command", [("topics", "offsets"), ("topics", "describe"), ("log-dirs",)])
def test_internal_topics_are_shown_on_request_only(headrace, topic, command):
    headrace("topics", "create", topic)
    headrace("consume", topic, "--group", f"of-{topic}", "-e")
    assert topic in headrace(*command).out
    assert "__consumer_offsets" not in headrace(*command).out
    assert "__consumer_offsets" in headrace(*command, "--internal").out
    assert "__consumer_offsets" in headrace(*command, "__consumer_offsets").out


@pytest.mark.parametrize(
    ("script", "option"),
    [
        (("kafka-topics.sh", "--describe"), "--exclude-internal"),
        (("kafka-get-offsets.sh",), "--exclude-internal-topics"),
        (("kafka-log-dirs.sh", "--describe"), None),
    ],
)
def test_kafka_scripts_show_internal_topics_by_default(headrace, topic, broker, script, option):
    headrace("topics", "create", topic)
    headrace("consume", topic, "--group", f"of-{topic}", "-e")
    address = ("--bootstrap-server", broker.bootstrap_servers)
    assert "__consumer_offsets" in headrace(*script, *address).out
    if option is not None:
        assert "__consumer_offsets" not in headrace(*script, *address, option).out


def test_a_missing_topic_is_named_in_the_same_way_by_each_command(headrace):
    for arguments in (
        ("topics", "alter", "missing", "-p", "2"),
        ("topics", "delete", "missing"),
        ("topics", "offsets", "missing"),
        ("configs", "set", "topic", "missing", "retention.ms=1"),
        ("groups", "delete-offsets", "some-group", "--topic", "missing"),
    ):
        ran = headrace(*arguments, status=1)
        text = " ".join((ran.out + ran.err).split())
        assert "topic missing does not exist at" in text, arguments
        assert "'headrace topics list' lists the topics" in text, arguments


@pytest.mark.parametrize(
    ("before", "question"),
    [
        ("latest", "Delete ALL records of {topic}:0, {topic}:1 at "),
        ("0", "Delete the records below offset 0 of {topic}:0, {topic}:1 at "),
    ],
)
def test_the_question_says_which_records_are_deleted(headrace, topic, before, question):
    headrace("topics", "create", topic, "-p", "2")
    arguments = ("topics", "delete-records", topic, "--before", before)
    ran = headrace(*arguments, stdin=b"n\n", typed=True, status=1)
    assert question.format(topic=topic) in ran.err and "? [y/N]" in ran.err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("{", "not a JSON document"),
        ("[]", "expected a document such as"),
        ('{"partitions": [{"topic": "t", "offset": 1}]}', 'partitions[0] has no "partition"'),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": "x"}]}',
            'partitions[0]: "offset" is "x", not an integer',
        ),
    ],
)
def test_a_wrong_file_of_records_to_delete_is_wrong_usage(headrace, tmp_path, text, reason):
    file = tmp_path / "dr.json"
    if text is not None:
        file.write_text(text)
    ran = headrace("topics", "delete-records", "--file", str(file), status=2)
    assert f"{file}: {reason}" in ran.err


def test_records_to_delete_need_an_offset(headrace, topic):
    ran = headrace("topics", "delete-records", topic, status=2)
    assert 'missing --before: pass the first offset to keep, or "latest"' in ran.err


@pytest.mark.parametrize("answer", [b"n\n", b"\n"])
def test_on_a_terminal_deletion_asks_first(headrace, topic, answer):
    headrace("topics", "create", topic)
    ran = headrace("topics", "delete", topic, stdin=answer, typed=True, status=1)
    assert f"Delete {topic} at" in ran.err and "nothing deleted" in ran.err
    headrace("topics", "delete", topic, "--yes", typed=True)


def test_kafka_scripts_work_end_to_end(headrace, topic, broker):
    server = ("--bootstrap-server", broker.bootstrap_servers)
    zookeeper = ("--zookeeper", "localhost:1")  # none runs there
    headrace("kafka-topics.sh", "--create", "--topic", topic, "--partitions", "2", *zookeeper)
    assert topic in headrace("kafka-topics", "--list", *server).lines
    headrace("kafka-topics", "--alter", "--topic", topic, "--config", "flush.messages=1", *server)
    assert "flush.messages=1" in headrace("topics", "--describe", "--topic", topic).out
    refused = headrace("kafka-topics", "--list", "--zookeeper", "far:2181", status=2)
    assert "-b HOST:9092" in refused.err
    headrace("kafka-topics.sh", "--delete", "--topic", topic, *server)
