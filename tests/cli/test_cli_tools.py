"""``headrace perf`` and ``headrace dump-log`` with a running broker."""

import signal

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

PERCENTILES = {"p50", "p75", "p90", "p95", "p99", "p99.9", "max"}


def test_perf_produce_and_consume_print_figures(headrace, topic):
    produced = headrace(
        "perf", "produce", topic, "-n", "2000", "--size", "200", "--format", "json"
    ).document
    assert (produced["records"], produced["failed"]) == (2000, 0)
    assert produced["records_per_s"] > 0 and produced["mb_per_s"] > 0
    assert produced["acknowledgement_ms"].keys() == PERCENTILES
    consumed = headrace("perf", "consume", topic, "--format", "json").document
    assert consumed["records"] == 2000
    table = headrace("perf", "consume", topic, "-n", "500").out
    assert "records_per_s" in table
    assert (
        "has 2000 records, fewer than 9999"
        in headrace("perf", "consume", topic, "-n", "9999", status=1).err
    )


@pytest.mark.parametrize(("rate", "count"), [(1000, 200), (40, 30)])
def test_a_rate_is_not_exceeded(headrace, topic, rate, count):
    headrace("topics", "create", topic)
    produced = headrace(
        "perf", "produce", topic, "-n", str(count), "--rate", str(rate), "--format", "json"
    ).document
    # The last record is sent after (count - 1) / rate seconds, later on a slow machine.
    assert produced["records_per_s"] <= rate * count / (count - 1) + 1


def test_perf_latency_draws_its_percentiles(headrace, topic):
    told = headrace("perf", "latency", topic, "-n", "20", "--format", "json").document
    assert told["end_to_end_ms"].keys() == told["acknowledgement_ms"].keys() == PERCENTILES
    assert told["end_to_end_ms"]["max"] >= told["acknowledgement_ms"]["p50"]
    drawn = headrace("perf", "latency", topic, "-n", "20").out
    assert "end to end, ms" in drawn and "█" in drawn


def test_a_failed_measurement_draws_no_percentiles(headrace, topic):
    headrace("topics", "create", topic, "-c", "max.message.bytes=1000")
    arguments = ("perf", "produce", topic, "-n", "3", "--size", "5k", "-X", "batch.num.messages=1")
    drawn = headrace(*arguments, status=1)
    assert "█" not in drawn.out and "acknowledgement" not in drawn.out
    assert "3 records failed; last error" in drawn.err and "MESSAGE_TOO_LARGE" in drawn.err
    figures = headrace(*arguments, "--format", "json", status=1).document
    assert (figures["records"], figures["failed"]) == (0, 3)
    assert figures["acknowledgement_ms"] is None


def wait_for_records(broker, topic, process):
    """Wait until the topic has records of the process."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "watches"})
    partition = TopicPartition(topic, 0)
    while consumer.get_watermark_offsets(partition, timeout=20, cached=False)[1] < 10:
        assert process.poll() is None, process.stderr.read()
    consumer.close()


@pytest.mark.parametrize(
    ("command", "shown"),
    [(("produce", "--rate", "2000"), b"records_per_s"), (("latency",), b"end to end, ms")],
    ids=["produce", "latency"],
)
def test_ctrl_c_ends_a_measurement_without_a_traceback(
    headrace, topic, broker, start, command, shown
):
    headrace("topics", "create", topic)
    process = start("perf", *command, topic, "-n", "10000000")
    wait_for_records(broker, topic, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert shown in out, "the figures so far are printed"


def test_dump_log_shows_what_was_produced(headrace, topic, broker):
    headrace("produce", topic, "-k", ":", "--headers", "h=1", stdin=b"k:v\nk2:v2\n")
    directory = broker.data / f"{topic}-0"
    [dump] = headrace(
        "dump-log", "--deep", str(directory / f"{0:020}.log"), "--format", "json"
    ).document
    assert dump["problems"] == []
    [batch] = dump["entries"]
    assert (batch["base_offset"], batch["last_offset"], batch["crc"]) == (0, 1, "ok")
    assert [(r["key"], r["value"]) for r in batch["records"]] == [("k", "v"), ("k2", "v2")]
    assert batch["records"][0]["headers"] == [{"name": "h", "value": "1"}]
    shown = headrace("dump-log", str(directory)).out
    assert "leader-epoch-checkpoint" in shown and "BASE-OFFSET" in shown
    assert "Verified" not in shown


def test_dump_log_decodes_the_records_of_internal_topics(headrace, broker, topic):
    group, transactional_id = f"group-of-{topic}", f"id-of-{topic}"
    headrace("produce", topic, stdin=b"a\nb\n")
    headrace("consume", topic, "--group", group, "--from-beginning", "--max", "2")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
    )
    producer.init_transactions(20)

    def records(internal_topic):
        files = sorted(broker.data.glob(f"{internal_topic}-*/*.log"))
        dumps = headrace("dump-log", "--deep", *map(str, files), "--format", "json").document
        return [
            record
            for dump in dumps
            for batch in dump["entries"]
            for record in batch["records"]
            if "marker" not in record
        ]

    commits = [
        record["value"]
        for record in records("__consumer_offsets")
        if record["key"] == {"type": "OffsetCommit", "group": group, "topic": topic, "partition": 0}
    ]
    assert commits[-1]["offset"] == 2
    [states] = [
        record
        for record in records("__transaction_state")
        if record["key"] == {"type": "TransactionLog", "transactional_id": transactional_id}
    ]
    assert states["value"]["transaction_status"] == 0
    files = [str(path) for path in broker.data.glob("__transaction_state-*/*.log")]
    shown = headrace("dump-log", "--deep", *files).out
    assert f'"transactional_id":"{transactional_id}"' in shown


def test_dump_log_says_what_it_verified(headrace, topic, broker):
    headrace("topics", "create", topic, "-c", "index.interval.bytes=0")
    headrace("produce", topic, "-X", "batch.num.messages=1", stdin=b"a\nb\nc\n")
    directory = broker.data / f"{topic}-0"
    log, index = (directory / f"{0:020}.{kind}" for kind in ("log", "index"))
    shown = headrace("dump-log", "--verify-index", str(directory))
    count = len(index.read_bytes()) // 8
    assert f"Verified: {count} entries against {log.name}, none wrong" in shown.lines
    [document] = headrace("dump-log", "--verify-index", str(index), "--format", "json").document
    assert document["verified"] == {"against": log.name, "entry_count": count, "wrong_count": 0}
    ran = headrace("dump-log", "--verify-index", str(log), "--format", "json")
    assert ran.document[0]["verified"] is None
    assert "Nothing was verified" in ran.err


def test_dump_log_fails_for_what_it_cannot_read(headrace, tmp_path):
    assert "No such file" in headrace("dump-log", str(tmp_path / "0.log"), status=1).err
    stray = tmp_path / "notes.txt"
    stray.write_text("x")
    assert "is not a log file" in headrace("dump-log", str(stray), status=1).err


def test_a_cluster_is_sized_for_a_load(headrace):
    ran = headrace("size", "--in", "20", "--retention", "7d", "--format", "json")
    assert ran.document["brokers"] == 3 and ran.document["machines"] == 3
    assert ran.document["disk_total"] > 20 * 3 * 7 * 86_400
    ran = headrace("size", "--in", "1000", "--cores", "8")
    assert "broker.rack" in ran.err
    rows = {line.split("  ")[0]: line.split() for line in ran.lines}
    assert int(rows["brokers"][1]) > int(rows["machines"][1]) == 3
    assert "expected a time" in headrace("size", "--in", "1", "--retention", "x", status=2).err
