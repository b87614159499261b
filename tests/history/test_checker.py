"""The checker of histories finds every planted anomaly, and nothing in a clean history."""

import pytest

from headrace.model.ids import TopicPartition
from tests.history.checker import Kind, anomalies, sent_again
from tests.history.history import Ending, Entry, History, Replica

PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def a_clean_history():
    """Every kind of client, with retries, unknown outcomes and a change of the leader."""
    history = History()
    in_log = [Entry(0, b"p-0", 0), Entry(1, b"p-1", 0), Entry(2, b"i-0", 0)]
    in_log += [Entry(3, b"p-1", 1), Entry(4, b"i-1", 1), Entry(5, b"t-0", 1)]
    in_log += [Entry(6, None, 1), Entry(7, b"t-1", 2), Entry(8, None, 2), Entry(9, b"i-3", 2)]
    for number, (offset, leader) in enumerate([(0, 1), (3, 2)]):
        plain = history.send("plain", PLACE, b"p-%d" % number)
        history.acknowledge(plain, offset, leader)
    history.refuse(history.send("plain", PLACE, b"p-2"))
    for number, offset in enumerate([2, 4, None, 9]):
        sent = history.send("idempotent", PLACE, b"i-%d" % number, idempotent=True)
        if offset is not None:
            history.acknowledge(sent, offset, leader={2: 1, 4: 2, 9: 3}[offset])
    for number, (offset, ending) in enumerate([(5, Ending.ABORTED), (7, Ending.COMMITTED)]):
        name = f"transaction-{number}"
        history.begin(name)
        sent = history.send(
            "transactional", PLACE, b"t-%d" % number, idempotent=True, transaction=name
        )
        history.acknowledge(sent, offset, leader=number + 2)
        history.end(name, ending)
    visible = [entry for entry in in_log if entry.offset != 5]
    reading = history.start_reading("reader", PLACE, 0)
    history.read(reading, in_log[:4], end=4)
    history.read(reading, in_log[4:], end=10)
    committed = history.start_reading("committed", PLACE, 2, committed_only=True)
    history.read(committed, visible[2:8], end=9)
    for client, offset in [("a", 3), ("b", 2), ("a", 3), ("b", 10)]:
        history.answer_latest(client, PLACE, offset)
    first = history.own("g", "m-1", 1, [PLACE, OTHER], since=1.0)
    first.until = 5.0
    second = history.own("g", "m-1", 2, [PLACE], since=7.0)
    second.until = 9.0
    history.own("g", "m-2", 2, [OTHER], since=6.0).until = 9.0
    history.commit("g", PLACE, 3, answered_at=4.0)
    history.answer_committed("g", PLACE, 3, asked_at=6.0, answered_at=6.5)
    history.answer_committed("g", PLACE, 0, asked_at=3.0, answered_at=3.5)
    history.find(PLACE, 0, 10, in_log)
    history.find(PLACE, 0, 10, visible, committed_only=True)
    for broker_id in (1, 2, 3):
        history.find_replica(PLACE, broker_id, 10, in_log)
    return history


def rewrite(history, offset, entry):
    """Put another entry, or none, in the log at an offset; readers keep what they saw."""
    for contents in (history.contents, history.committed_contents):
        entries = contents[PLACE].entries
        entries[:] = [
            entry if e.offset == offset else e for e in entries if entry or e[0] != offset
        ]


def lose_a_record(history):
    rewrite(history, 9, None)
    history.readings.clear()


def move_a_record(history):
    """Acknowledged at one offset, it is at another one."""
    history.acknowledge(history.sent[-1], 8)


def double_a_record(history):
    rewrite(history, 3, Entry(3, b"i-0", 1))


def reorder_acknowledged_records(history):
    history.sent[0].offset, history.sent[1].offset = 3, 1


def reorder_an_unknown_record(history):
    """The record whose producer had no answer, behind the next one."""
    history.find(PLACE, 0, 11, [*history.contents[PLACE].entries, Entry(10, b"i-2", 2)])


def invent_a_record(history):
    rewrite(history, 1, Entry(1, b"never sent", 0))


def read_an_invented_record(history):
    history.readings[0].entries[1] = Entry(1, b"never sent", 0)


def append_a_refused_record(history):
    rewrite(history, 3, Entry(3, b"p-2", 1))


def skip_a_record(history):
    del history.readings[0].entries[2]


def skip_a_committed_record(history):
    del history.readings[1].entries[1]


def take_back_a_record(history):
    rewrite(history, 1, None)


def change_an_offset(history):
    history.readings[0].entries[1] = Entry(1, b"p-0", 0)


def move_latest_back(history):
    history.answer_latest("b", PLACE, 9)


def leave_a_gap(history):
    contents = history.contents[PLACE]
    history.contents[PLACE] = contents._replace(end=contents.end + 1)


def read_an_aborted_record(history):
    history.readings[1].entries.append(Entry(5, b"t-0", 1))


def commit_an_aborted_record(history):
    visible = history.committed_contents[PLACE].entries
    visible.append(Entry(5, b"t-0", 1))


def hide_a_committed_record(history):
    visible = history.committed_contents[PLACE].entries
    visible[:] = [entry for entry in visible if entry.offset != 7]


def tear_a_transaction(history):
    """Two records, an unknown end, and one of them is visible."""
    history.begin("torn")
    for number, offset in enumerate([0, 1]):
        value = b"torn-%d" % number
        sent = history.send("torn", OTHER, value, idempotent=True, transaction="torn")
        history.acknowledge(sent, offset)
    entries = [Entry(0, b"torn-0"), Entry(1, b"torn-1"), Entry(2, None)]
    history.find(OTHER, 0, 3, entries)
    history.find(OTHER, 0, 3, entries[:1] + entries[2:], committed_only=True)


def own_twice_in_a_generation(history):
    history.own("g", "m-3", 2, [PLACE], since=20.0)


def own_before_the_other_let_go(history):
    history.ownerships[2].since = 4.5


def forget_a_commit(history):
    history.answer_committed("g", PLACE, 2, asked_at=8.0, answered_at=8.5)


def let_two_lead(history):
    history.sent[1].leader = 1  # the others of epoch 1 were acknowledged by broker 2


def change_a_replica(history):
    history.replicas[PLACE][2].entries[1] = Entry(1, b"p-0", 0)


def shorten_a_replica(history):
    del history.replicas[PLACE][1].entries[8:]


def change_an_epoch_of_a_replica(history):
    history.replicas[PLACE][2].entries[1] = Entry(1, b"p-1", 1)


def answer_out_of_range(history):
    history.expect_nothing_of("OFFSET_OUT_OF_RANGE at 4")


PLANTED = [
    (lose_a_record, Kind.LOST),
    (move_a_record, Kind.LOST),
    (double_a_record, Kind.DOUBLED),
    (reorder_acknowledged_records, Kind.REORDERED),
    (reorder_an_unknown_record, Kind.REORDERED),
    (invent_a_record, Kind.PHANTOM),
    (read_an_invented_record, Kind.PHANTOM),
    (append_a_refused_record, Kind.PHANTOM),
    (skip_a_record, Kind.UNSEEN),
    (skip_a_committed_record, Kind.UNSEEN),
    (take_back_a_record, Kind.CHANGED),
    (change_an_offset, Kind.CHANGED),
    (move_latest_back, Kind.LATEST_WENT_BACK),
    (leave_a_gap, Kind.GAP),
    (read_an_aborted_record, Kind.ABORTED_READ),
    (commit_an_aborted_record, Kind.ABORTED_READ),
    (hide_a_committed_record, Kind.TORN),
    (tear_a_transaction, Kind.TORN),
    (own_twice_in_a_generation, Kind.TWO_OWNERS),
    (own_before_the_other_let_go, Kind.TWO_OWNERS),
    (forget_a_commit, Kind.COMMIT_WENT_BACK),
    (let_two_lead, Kind.TWO_LEADERS),
    (change_a_replica, Kind.REPLICAS_DIFFER),
    (shorten_a_replica, Kind.REPLICAS_DIFFER),
    (change_an_epoch_of_a_replica, Kind.REPLICAS_DIFFER),
    (answer_out_of_range, Kind.UNEXPECTED),
]


def test_a_clean_history_has_no_anomaly():
    assert anomalies(a_clean_history()) == []


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[p.__name__ for p, _ in PLANTED])
def test_a_planted_anomaly_is_found(plant, kind):
    history = a_clean_history()
    plant(history)
    assert kind in {anomaly.kind for anomaly in anomalies(history)}


def test_every_kind_of_anomaly_is_planted():
    assert {kind for _, kind in PLANTED} == set(Kind)


def test_a_record_that_its_client_sent_again_under_a_new_epoch_is_counted_apart():
    history = a_clean_history()
    double_a_record(history)
    held = history.contents[PLACE].entries
    for epochs, doubled, again in (((0, 0), 1, 0), ((0, 1), 0, 1)):
        producers = dict(zip((2, 3), epochs, strict=True))
        entries = [e._replace(producer=(7, producers.get(e.offset, 0))) for e in held]
        history.replicas = {PLACE: [Replica(1, 10, entries)]}
        kinds = [anomaly.kind for anomaly in anomalies(history)]
        assert kinds.count(Kind.DOUBLED) == doubled
        assert sent_again(history) == again


def test_records_below_the_log_start_are_neither_lost_nor_changed():
    history = a_clean_history()
    for contents in (history.contents, history.committed_contents):
        old = contents[PLACE]
        kept = [entry for entry in old.entries if entry.offset >= 4]
        contents[PLACE] = old._replace(start=4, entries=kept)
    assert anomalies(history) == []


def a_compacted_history():
    history = History()
    history.compacted_topics.add("t")
    for offset in range(4):
        key = b"k-%d" % (offset % 2)
        history.acknowledge(history.send("p", PLACE, b"%d" % offset, key=key), offset)
    kept = [Entry(2, b"2", 0, b"k-0"), Entry(3, b"3", 0, b"k-1")]
    history.find(PLACE, 0, 4, kept)
    history.find_replica(PLACE, 1, 4, kept)
    history.find_replica(PLACE, 2, 4, [Entry(1, b"1", 0, b"k-1"), *kept])
    return history


def test_a_compacted_topic_keeps_the_newest_value_of_a_key():
    history = a_compacted_history()
    assert anomalies(history) == []
    history.contents[PLACE].entries.pop()
    assert {anomaly.kind for anomaly in anomalies(history)} == {Kind.LOST}


def test_compacted_replicas_agree_on_the_value_of_a_key():
    history = a_compacted_history()
    history.replicas[PLACE][1].entries.pop()
    assert {anomaly.kind for anomaly in anomalies(history)} == {Kind.REPLICAS_DIFFER}
