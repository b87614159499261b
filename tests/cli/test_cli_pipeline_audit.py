"""``headrace pipeline audit``: what it prints, and its exit status."""

from confluent_kafka import Producer

from headrace.model.audit import AUDIT_TOPIC, LoadMessage, MinuteCounts, ReadRange

MINUTE = 1_700_000_040_000


def test_audit(headrace, broker, topic, tmp_path):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    counts = MinuteCounts(topic, "1")
    for number in range(3):
        producer.produce(topic, b"{}", timestamp=MINUTE)
        counts.add(topic, MINUTE + 60_000 * (number == 2))
    message = counts.take()
    producer.produce(AUDIT_TOPIC, message.value, message.key)
    assert producer.flush(10) == 0
    command = ["pipeline", "audit", topic, "--warehouse", str(tmp_path)]

    ran = headrace(*command, status=1)
    assert "Minutes that differ" in ran.out and "2023-11-14T22:15" in ran.out

    found = headrace(*command, "--format", "json", status=1).document
    (total,) = found["totals"]
    assert (total["tier"], total["expected"], total["found"]) == ("broker", 3, 3)
    assert [(one["missing"], one["surplus"]) for one in found["minutes"]] == [(0, 1), (1, 0)]

    producer.produce(topic, b"{}", timestamp=MINUTE + 60_000)
    fixed = MinuteCounts(topic, "2")
    fixed.add(topic, MINUTE)
    producer.produce(AUDIT_TOPIC, fixed.take().value, b"fixed")
    assert producer.flush(10) == 0
    ran = headrace(*command)
    assert ran.lines[-1] == "The books balance."


def test_audit_of_nothing(headrace, tmp_path, topic):
    ran = headrace("pipeline", "audit", topic, "--warehouse", str(tmp_path))
    assert "No topic is counted" in ran.err


def test_records_that_are_no_counts_are_named(headrace, broker, topic, tmp_path):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(AUDIT_TOPIC, b"no JSON", topic.encode())
    assert producer.flush(10) == 0
    command = ["pipeline", "audit", topic, "--warehouse", str(tmp_path)]

    ran = headrace(*command)
    assert "Ignoring the record at offset" in ran.err
    assert "1 record of headrace-audit cannot be read as counts." in ran.err
    (bad,) = headrace(*command, "--format", "json").document["unreadable"]
    assert bad["partition"] == 0 and bad["reason"]

    producer.produce(AUDIT_TOPIC, None, topic.encode())
    assert producer.flush(10) == 0
    assert headrace(*command, "--format", "json").document["unreadable"] == []


def test_offsets_that_a_load_gave_up_are_listed(headrace, broker, topic, tmp_path):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"{}", timestamp=MINUTE)
    counts = MinuteCounts(topic, "1")
    counts.add(topic, MINUTE)
    lost = LoadMessage("s3://b/views", (ReadRange(topic, "T", 1, 5, 12, {}),), is_lost=True)
    for message in (counts.take(), lost):
        producer.produce(AUDIT_TOPIC, message.value, message.key)
    assert producer.flush(10) == 0
    command = ["pipeline", "audit", topic, "--warehouse", str(tmp_path)]

    ran = headrace(*command)
    assert "Deleted from the log before they were loaded, and accepted" in ran.lines
    assert ["s3://b/views", topic, "1", "5", "12"] in [line.split() for line in ran.lines]
    assert ran.lines[-1] == "The books balance."
    (found,) = headrace(*command, "--format", "json").document["lost"]
    assert (found["table"], found["first_offset"], found["offset_end"]) == ("s3://b/views", 5, 12)
