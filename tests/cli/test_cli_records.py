"""``headrace produce`` and ``headrace consume`` with a running broker."""

import json
import signal

import pytest
from confluent_kafka import Producer

# The partitions that Kafka's Java producer (BuiltInPartitioner of 4.3.1) selects among 3 and 12.
JAVA = {
    "a": (1, 4),
    "b": (2, 8),
    "ab": (2, 2),
    "abc": (0, 3),
    "abcd": (2, 8),
    "member-17": (1, 10),
    "order:4711": (1, 7),
    "Ärger": (2, 11),
    "日本": (0, 3),
    "user-1": (2, 8),
    "user-3": (2, 11),
    "4": (1, 1),
    "5": (0, 6),
    "the quick brown fox jumps": (1, 7),
}


def records(headrace, topic, *options):
    lines = headrace("consume", topic, "--from-beginning", "-e", "--format", "json", *options).lines
    return [json.loads(line) for line in lines]


def test_lines_come_back_in_order(headrace, topic):
    headrace("topics", "create", topic)
    produced = headrace("produce", topic, stdin=b"one\ntwo\r\n\nfour")
    assert produced.out == produced.err == ""
    consumed = headrace("consume", topic, "--from-beginning", "--exit-at-end")
    assert consumed.out == "one\ntwo\n\nfour\n"
    assert consumed.err == "4 records\n"


def test_a_topic_that_the_broker_creates_gets_a_note(headrace, topic):
    first = headrace("produce", topic, stdin=b"one\n")
    assert (
        first.out == "" and f"topic {topic} did not exist; the broker has created it" in first.err
    )
    assert headrace("produce", topic, stdin=b"two\n").err == ""


@pytest.mark.parametrize(("slot", "partition_count"), [(0, 3), (1, 12)])
def test_a_key_selects_the_partition_of_kafkas_java_producer(
    headrace, topic, slot, partition_count
):
    headrace("topics", "create", topic, "-p", str(partition_count))
    lines = "".join(f"{key}|x\n" for key in JAVA).encode()
    headrace("produce", topic, "-k", "|", stdin=lines)
    found = {record["key"]: record["partition"] for record in records(headrace, topic)}
    assert found == {key: partitions[slot] for key, partitions in JAVA.items()}


def test_keys_headers_and_nulls_are_preserved(headrace, topic):
    headrace(
        "produce", topic, "--headers", "all=1", "--header-separator", r"\t", "-k", ":",
        "--null-marker", "NULL", stdin=b"a=1,b\tk1:v1\nNULL\tk2:NULL\n",
    )  # fmt: skip
    first, second = records(headrace, topic)
    assert (first["key"], first["value"]) == ("k1", "v1")
    assert [(h["name"], h["value"]) for h in first["headers"]] == [
        ("all", "1"),
        ("a", "1"),
        ("b", None),
    ]
    assert (second["key"], second["value"], len(second["headers"])) == ("k2", None, 1)
    text = headrace("consume", topic, "--from-beginning", "-e", "--keys", "--headers", "--offsets")
    assert text.out == "0:0\tall=1,a=1,b=null\tk1\tv1\n0:1\tall=1\tk2\tnull\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_codec_with_all_acknowledgements(headrace, topic, codec, acks):
    told = headrace(
        "produce", topic, "-z", codec, "--acks", acks, "--format", "json", stdin=b"x\n" * 50
    )
    assert told.document == {"topic": topic, "delivered": 50, "failed": 0, "bytes": 100}
    count = headrace("consume", topic, "--from-beginning", "--max", "50", "--timeout", "10")
    assert count.err == "50 records\n"


def test_a_record_that_fails_is_reported_with_its_line(headrace, topic):
    headrace("topics", "create", topic, "-c", "max.message.bytes=1000")
    lines = b"k:good\nno separator\nk:" + b"x" * 2000 + b"\nk:good\n"
    ran = headrace("produce", topic, "-k", ":", "-X", "batch.num.messages=1", stdin=lines, status=1)
    assert "line 2: no key separator" in ran.err
    assert (
        f"line 3: MESSAGE_TOO_LARGE: 2,003 bytes exceed max.message.bytes of topic {topic}, "
        "which is 1,000" in ran.err
    )
    assert f"Delivered 2 records to {topic}; 2 failed." in ran.err
    assert [record["value"] for record in records(headrace, topic)] == ["good", "good"]


def test_a_partition_that_does_not_exist_is_reported(headrace, topic):
    headrace("topics", "create", topic)
    ran = headrace("produce", topic, "-p", "5", stdin=b"x\n", status=1)
    assert f"line 1: topic {topic} has no partition 5" in ran.err
    assert "no partition 5" in headrace("consume", topic, "-p", "5", status=1).err


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_a_partition_in_the_topic_name_gets_a_suggestion(headrace, topic, command):
    ran = headrace(command, f"{topic}:0", status=2)
    assert f"'headrace {command} {topic} --partition 0'" in ran.err


def test_reading_starts_at_the_requested_place(headrace, topic):
    headrace("topics", "create", topic, "-p", "2")
    headrace("produce", topic, "-p", "0", stdin=b"a0\na1\na2\n")
    headrace("produce", topic, "-p", "1", stdin=b"b0\nb1\n")

    def values(*options):
        return sorted(headrace("consume", topic, "-e", *options).lines)

    assert values() == []
    assert values("--offset", "latest") == []
    assert values("--offset", "earliest") == ["a0", "a1", "a2", "b0", "b1"]
    assert values("--offset", "1") == ["a1", "a2", "b1"]
    assert values("--offset", "-1") == ["a2", "b1"]
    assert values("--offset", "-9", "--partition", "1") == ["b0", "b1"]
    assert values("--from-time", "1h") == ["a0", "a1", "a2", "b0", "b1"]
    assert values("--from-time", "2999-01-01") == []
    assert values("--partition", "0-1", "--offset", "2") == ["a2"]
    assert (
        "starts at 0 and ends before 2"
        in headrace("consume", topic, "-p", "1", "--offset", "3", status=1).err
    )


def test_the_last_records_are_found_between_transaction_markers(headrace, topic, broker):
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"of-{topic}"}
    )
    producer.init_transactions(20)
    for value in ("a", "b", "c"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(20)
    assert [headrace("consume", topic, "-e", "-o", f"-{count}").lines for count in range(5)] == [
        [],
        ["c"],
        ["b", "c"],
        ["a", "b", "c"],
        ["a", "b", "c"],
    ]


def test_a_record_without_a_key_for_a_compacted_topic_gets_advice(headrace, topic):
    headrace("topics", "create", topic, "-c", "cleanup.policy=compact")
    ran = headrace("produce", topic, stdin=b"no key\n", status=1)
    assert "line 1: INVALID_RECORD" in ran.err and "--key-separator" in ran.err


def test_a_time_between_two_records_starts_with_the_second(headrace, topic):
    headrace("produce", topic, stdin=b"old\n")
    [old] = records(headrace, topic)
    while True:  # until the clock has advanced by a millisecond
        headrace("produce", topic, stdin=b"new\n")
        new = records(headrace, topic)[-1]
        if new["timestamp"] > old["timestamp"]:
            break
    ran = headrace("consume", topic, "-e", "--from-time", str(old["timestamp"] + 1))
    assert set(ran.lines) == {"new"}


def test_max_limits_the_number_of_records(headrace, topic):
    headrace("produce", topic, stdin=b"x\n" * 1000)
    assert len(headrace("consume", topic, "--from-beginning", "--max", "7").lines) == 7


def test_a_timeout_fails_only_if_max_was_not_reached(headrace, topic):
    headrace("produce", topic, stdin=b"x\n")
    headrace("consume", topic, "--from-beginning", "--timeout", "0.5")
    ran = headrace("consume", topic, "--from-beginning", "--max", "2", "--timeout", "0.5", status=1)
    assert ran.out == "x\n"


def test_a_pattern_and_raw_bytes(headrace, topic):
    headrace("produce", topic, "-k", "=", stdin=b"k=v\nk2=v2\n")
    ran = headrace("consume", topic, "--from-beginning", "-e", "--format", r"%k->%s;")
    assert ran.out == "k->v;k2->v2;"
    assert headrace("consume", topic, "--from-beginning", "-e", "--format", "raw").out == "vv2"


def test_producing_to_a_new_topic_creates_it(headrace, topic):
    headrace("kafka-console-producer.sh", "--topic", topic, stdin=b"first\n")
    assert headrace("consume", topic, "--from-beginning", "--max", "1").out == "first\n"


def test_a_topic_that_cannot_exist_is_refused_before_the_first_record(headrace, topic):
    assert "INVALID_TOPIC_EXCEPTION" in headrace("produce", "bad name", stdin=b"x\n", status=1).err
    assert "does not exist" in headrace("consume", topic, status=1).err


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "t", "--offset", "1", "--from-beginning"),
        ("consume", "t", "--offset", "soon"),
        ("consume", "t", "--from-time", "soon"),
        ("consume", "t", "--format", "yaml"),
        ("consume", "t", "--group", "g", "--offset", "1"),
        ("consume", "t", "-X", "no.such=1"),
        ("consume", "t", "-X", "broken"),
        ("consume", "t", "--max", "0"),
        ("produce", "t", "-k", ""),
        ("produce", "t", "--headers", "=x"),
        ("produce", "t", "--acks", "2"),
        ("produce",),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_wrong_usage_has_status_2(headrace, arguments):
    headrace(*arguments, status=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_consume_with_a_count_and_status_0(headrace, topic, start, number):
    headrace("produce", topic, stdin=b"one\ntwo\n")
    process = start("consume", topic, "--from-beginning")
    assert process.stdout.readline() == b"one\n"
    assert process.stdout.readline() == b"two\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"", b"2 records\n")


def test_a_closed_stdout_ends_consume_without_an_error(headrace, topic, start):
    headrace("produce", topic, stdin=b"x\n" * 100_000)
    process = start("consume", topic, "--from-beginning")
    assert process.stdout.readline() == b"x\n"
    process.stdout.close()
    process.wait(20)
    assert (process.returncode, process.stderr.read()) == (0, b"")
    process.stdout = None


def test_produce_interrupted_before_the_end_of_input_has_status_130(headrace, topic, start):
    import subprocess

    process = start("produce", topic, stdin=subprocess.PIPE)
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert headrace("topics", "create", topic, "--if-not-exists").status == 0
    waited = headrace("consume", topic, "--from-beginning", "--max", "1", "--timeout", "20")
    assert waited.out == "one\n"
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert process.returncode == 130
