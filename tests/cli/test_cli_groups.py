"""``headrace groups`` with a running broker, for groups of both protocols."""

import pytest
from confluent_kafka import Consumer, Producer

from headrace.testing import Broker


@pytest.fixture
def filled(broker, headrace, topic):
    """A topic of two partitions with ten records each."""
    headrace("topics", "create", topic, "-p", "2")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(20):
        producer.produce(
            topic, b"%d" % number, partition=number % 2, timestamp=1000 + 1000 * number
        )
    assert producer.flush(20) == 0
    return topic


def read_some(broker, topic, group, count, protocol="classic", close=True, commit=True):
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": protocol,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    read = 0
    while read < count:
        came = consumer.consume(count - read, timeout=20)
        assert came, f"{read} of {count} records came"
        read += len(came)
    if commit:
        consumer.commit(asynchronous=False)
    if close:
        consumer.close()
    return consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_and_described_with_its_lag_and_members(
    broker, headrace, filled, protocol
):
    group = f"group-of-{filled}"
    consumer = read_some(broker, filled, group, 20, protocol, close=False)
    rows = headrace("groups", "describe", group, "--format", "json").document
    assert [(row["topic"], row["partition"]) for row in rows] == [(filled, 0), (filled, 1)]
    assert {row["lag"] for row in rows} == {0}
    assert {row["log_end"] for row in rows} == {10}
    [member] = headrace("groups", "members", group, "--format", "json").document
    assert member["partitions"] == [
        {"topic": filled, "partition": 0},
        {"topic": filled, "partition": 1},
    ]
    # A field has the same name in every document.
    for name in ("group", "member_id", "client_id", "host"):
        assert {row[name] for row in rows} == {member[name]}
    [listed] = [
        row
        for row in headrace("groups", "list", "--format", "json").document
        if row["group"] == group
    ]
    assert group in headrace("groups", "list", "--names").lines
    assert listed["state"] == "Stable"
    assert listed["type"] == protocol.capitalize()
    assert headrace("groups", "describe", group).lines[0].split() == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID",
        "HOST", "CLIENT-ID",
    ]  # fmt: skip
    consumer.close()
    members = headrace("groups", "members", group)
    assert "has no active members" in members.err and members.out == ""
    described = headrace("groups", "describe", group)
    assert "has no active members" in described.err
    assert described.lines[0].split()[-1] == "LAG", "no member columns without members"


def test_all_groups_are_described_only_with_all(broker, headrace, filled):
    groups = {f"one-of-{filled}", f"two-of-{filled}"}
    for group in groups:
        read_some(broker, filled, group, 20)
    rows = headrace("groups", "describe", "--all", "--format", "json").document
    assert groups <= {row["group"] for row in rows}
    assert "--all" in headrace("groups", "describe", "--format", "json", status=2).err
    assert "--all" in headrace("groups", "describe", "--all", groups.pop(), status=2).err


def test_describe_without_a_group_says_what_to_name(headrace):
    ran = headrace("groups", "describe", status=2)
    assert ran.out == ""
    assert ran.err == "headrace: name a group, or use --all\n"


def test_a_partition_without_a_committed_offset_has_a_dash(broker, headrace, filled):
    group = f"new-of-{filled}"
    consumer = read_some(broker, filled, group, 20, close=False, commit=False)
    heading, *rows = (line.split() for line in headrace("groups", "describe", group).lines)
    assert heading[3:6] == ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert [row[3:6] for row in rows] == [["-", "10", "-"], ["-", "10", "-"]]
    rows = headrace("groups", "describe", group, "--format", "json").document
    assert [(row["committed"], row["lag"]) for row in rows] == [(None, None)] * 2
    consumer.close()


def test_the_total_lag_of_a_group_is_shown(broker, headrace, filled):
    group = f"lagging-of-{filled}"
    read_some(broker, filled, group, 20)
    headrace("groups", "reset", group, "--to", "4", "--execute")
    rows = headrace("groups", "list", "--lag", "--format", "json").document
    assert [row["lag"] for row in rows if row["group"] == group] == [12]
    (line,) = (one for one in headrace("groups", "list", "--lag").lines if group in one)
    assert line.split()[-1] == "12"
    ran = headrace("groups", "describe", group)
    assert f"Total lag of {group}: 12 records in 2 partitions" in ran.err


def offsets_of(headrace, group):
    rows = headrace("groups", "describe", group, "--format", "json").document
    return {row["partition"]: row["committed"] for row in rows}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--to", "earliest"], {0: 0, 1: 0}),
        (["--to", "latest"], {0: 10, 1: 10}),
        (["--to", "4"], {0: 4, 1: 4}),
        (["--to", "1970-01-01T00:00:05Z"], {0: 2, 1: 2}),
        (["--shift", "-3"], {0: 7, 1: 7}),
        (["--shift", "100"], {0: 10, 1: 10}),
    ],
)
def test_a_reset_is_shown_first_and_done_with_execute(broker, headrace, filled, how, expected):
    group = f"reset-of-{filled}"
    read_some(broker, filled, group, 20)
    before = offsets_of(headrace, group)
    planned = headrace("groups", "reset", group, "--topic", filled, *how, "--format", "json")
    assert {row["partition"]: row["new_offset"] for row in planned.document} == expected
    assert {row["partition"]: row["committed"] for row in planned.document} == before
    assert "--execute" in planned.err
    assert offsets_of(headrace, group) == before == {0: 10, 1: 10}
    headrace("groups", "reset", group, "--topic", filled, *how, "--execute")
    assert offsets_of(headrace, group) == expected


def test_a_reset_beyond_the_log_gets_a_note_and_a_negative_one_is_refused(headrace, filled):
    how = ("groups", "reset", f"far-of-{filled}", "--topic", f"{filled}:0", "--to")
    assert f"{filled}:0 has offsets 0 to 10: using 10 instead of 99" in headrace(*how, "99").err
    headrace(*how, "-5", status=2)
    assert "--to 'soon': expected earliest, latest" in headrace(*how, "soon", status=2).err


def test_a_reset_from_a_file_and_of_some_partitions(broker, headrace, filled, tmp_path):
    group = f"file-of-{filled}"
    read_some(broker, filled, group, 20)
    plan = tmp_path / "offsets.csv"
    plan.write_text(f"{filled},0,1\n{filled},1,2\n")
    headrace("groups", "reset", group, "--from-file", str(plan), "--execute")
    assert offsets_of(headrace, group) == {0: 1, 1: 2}
    headrace("groups", "reset", group, "--topic", f"{filled}:1", "--to", "5", "--execute")
    assert offsets_of(headrace, group) == {0: 1, 1: 5}


@pytest.mark.parametrize("more", [(), ("--execute",)])
def test_a_reset_without_committed_offsets_asks_for_topics(broker, headrace, filled, more):
    missing, empty = f"missing-of-{filled}", f"empty-of-{filled}"
    ran = headrace("groups", "reset", missing, "--to", "latest", *more, status=1)
    assert ran.out == ""
    assert f"group {missing} does not exist" in ran.err
    assert "groups list" in ran.err and "--topic" in ran.err
    read_some(broker, filled, empty, 20, commit=False)
    ran = headrace("groups", "reset", empty, "--to", "latest", *more, status=1)
    assert ran.out == ""
    assert f"group {empty} has no committed offsets" in ran.err and "--topic" in ran.err


def test_a_reset_of_a_missing_group_says_that_it_creates_the_group(headrace, filled):
    reset = ("groups", "reset", f"misspelled-of-{filled}", "--topic", filled, "--to", "earliest")
    planned = headrace(*reset).err
    assert f"Group misspelled-of-{filled} does not exist; --execute will create it" in planned
    assert "did not exist; it has been created" in headrace(*reset, "--execute").err
    assert "exist" not in headrace(*reset, "--execute").err


def test_a_group_that_does_not_exist_is_named_with_advice(headrace, filled):
    name = f"absent-of-{filled}"
    for command in (["describe"], ["members"], ["delete-offsets", "--topic", filled]):
        ran = headrace("groups", *command, name, status=1)
        assert f"group {name} does not exist" in ran.err and "headrace groups list" in ran.err
    [row] = headrace("groups", "delete", name, "--format", "json", status=1).document
    assert row["error"] == "GROUP_ID_NOT_FOUND"
    assert "headrace groups list" in row["detail"]


def test_looking_for_a_group_creates_no_internal_topic(headrace, monkeypatch):
    with Broker(topics=["orders"]) as fresh:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", fresh.bootstrap_servers)
        for command in (["describe"], ["members"], ["delete-offsets", "--topic", "orders"]):
            assert "group g does not exist" in headrace("groups", *command, "g", status=1).err
        [row] = headrace("groups", "delete", "g", "--format", "json", status=1).document
        assert (row["status"], row["error"]) == ("failed", "GROUP_ID_NOT_FOUND")
        headrace("groups", "describe", "--all")
        headrace("groups", "reset", "g", "--topic", "orders", "--to", "earliest")
        assert headrace("topics", "list", "--names").lines == ["orders"]


def test_a_group_with_members_is_neither_reset_nor_deleted(broker, headrace, filled):
    group = f"busy-of-{filled}"
    consumer = read_some(broker, filled, group, 20, close=False)
    refused = headrace("groups", "reset", group, "--to", "earliest", "--execute", status=1)
    assert "stop its consumers first" in refused.err
    [row] = headrace("groups", "delete", group, "--format", "json", status=1).document
    assert (row["group"], row["status"], row["error"]) == (group, "failed", "NON_EMPTY_GROUP")
    assert row["detail"] == f"group {group} has 1 member; stop its consumers first"
    consumer.close()
    heading, row = headrace("groups", "delete", group).lines
    assert (heading.split(), row.split()) == (["GROUP", "STATUS"], [group, "deleted"])
    assert "does not exist" in headrace("groups", "describe", group, status=1).err


def test_committed_offsets_are_deleted_by_partition(broker, headrace, filled):
    group = f"part-of-{filled}"
    read_some(broker, filled, group, 20)
    which = ("--topic", f"{filled}:0")
    assert headrace("groups", "delete-offsets", group, *which, "--format", "json").document == [
        {
            "group": group,
            "topic": filled,
            "partition": 0,
            "status": "deleted",
            "error": None,
            "detail": None,
        }
    ]
    assert offsets_of(headrace, group) == {1: 10}
    consumer = read_some(broker, filled, group, 10, close=False)
    which = ("--topic", f"{filled}:1")
    refused = headrace("groups", "delete-offsets", group, *which, status=1).lines
    assert refused[1].split()[-2:] == ["failed", "GROUP_SUBSCRIBED_TO_TOPIC"]
    consumer.close()
    refused = headrace("groups", "delete-offsets", group, "--topic", f"{filled}:7", status=1)
    assert "has no partition 7; it has 2 partitions" in refused.err
