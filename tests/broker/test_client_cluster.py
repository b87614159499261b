"""The cluster as a client sees it: bootstrap, leaders, coordinators and retries."""

from functools import partial

import pytest

from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.testing import Broker
from headrace.wire import messages as m

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def broker():
    with Broker(topics={"t": 3, "u": 1}) as broker:
        yield broker


@pytest.fixture
def connect(broker):
    opened = []

    def connect(bootstrap=None, advice=None, **settings):
        client = ClientSettings(
            bootstrap or broker.bootstrap_servers,
            retry_backoff_ms=1,
            retry_backoff_ms_max=2,
            **settings,
        )
        opened.append(Cluster(client, advice))
        return opened[-1]

    yield connect
    for cluster in opened:
        cluster.close()


def test_topics_have_leaders_and_ids(connect):
    cluster = connect()
    found = cluster.topics(["t"])["t"]
    assert list(found.leaders) == [0, 1, 2]
    assert found.error == ErrorCode.NONE
    assert len(found.topic_id) == 16 and any(found.topic_id)
    assert cluster.leader("t", 2) == found.leaders[2] == cluster.controller_id


def test_forgotten_topics_are_asked_for_one_by_one(connect, monkeypatch):
    """Fresh metadata of one topic says nothing about the age of another's."""
    cluster = connect()
    cluster.topics(["t", "u"])
    asked, topics = [], cluster.topics

    def note_and_ask(names=None, **options):
        asked.append(names)
        return topics(names, **options)

    monkeypatch.setattr(cluster, "topics", note_and_ask)
    cluster.topic("t")
    assert asked == []
    cluster.forget()
    for _ in range(2):
        cluster.topic("t")
        cluster.topic("u")
    assert asked == [["t"], ["u"]]


def test_internal_topics_are_listed_only_by_name(connect):
    cluster = connect()
    cluster.persistently(lambda: cluster.group_coordinator("g"), "finding the coordinator")
    assert list(cluster.topics()) == ["t", "u"]
    assert list(cluster.topics(["__consumer_offsets"])) == ["__consumer_offsets"]


def test_a_bootstrap_server_that_is_away_is_skipped(connect, broker):
    cluster = connect(f"{NOWHERE}, PLAINTEXT://{broker.bootstrap_servers},")
    assert list(cluster.topic("t").leaders) == [0, 1, 2]


def test_if_all_bootstrap_servers_are_away_the_error_names_each_reason(connect):
    with pytest.raises(Disconnected, match=f"^cannot connect to {NOWHERE}: [^;]*refused[^;]*$"):
        connect(f"{NOWHERE},{NOWHERE}").topics()


def test_a_topic_or_partition_that_does_not_exist_is_refused(connect):
    cluster = connect(advice={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create it"})
    with pytest.raises(Refused, match=r"topic 'no': UNKNOWN_TOPIC_OR_PARTITION \(create it\)"):
        cluster.topic("no")
    with pytest.raises(Refused, match="t-7: UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.leader("t", 7)
    with pytest.raises(Refused, match="unknown broker 99: BROKER_NOT_AVAILABLE"):
        cluster.connection(99)


def test_coordinators_of_groups_and_transactions_are_found_and_cached(connect):
    cluster = connect()
    for find in (cluster.group_coordinator, cluster.transaction_coordinator):
        broker_id = cluster.persistently(partial(find, "a"), "finding the coordinator")
        assert find("a") == broker_id
        response = cluster.ask(broker_id, m.MetadataRequest(topics=[]), m.MetadataResponse)
        assert response.controller_id == broker_id


def test_a_dropped_connection_is_opened_again(connect):
    cluster = connect()
    leader = cluster.leader("t", 0)
    first = cluster.connection(leader)
    assert cluster.connection(leader) is first
    first.send(m.MetadataRequest())
    assert cluster.has_requests_in_flight(leader)
    cluster.drop(leader)
    assert not cluster.has_requests_in_flight(leader)
    assert cluster.connection(leader) is not first


def test_a_broken_connection_is_replaced_by_the_next_request(connect):
    cluster = connect()
    leader = cluster.leader("t", 0)
    first = cluster.connection(leader)
    first.close()
    with pytest.raises(Disconnected):
        cluster.ask(leader, m.MetadataRequest(), m.MetadataResponse)
    assert cluster.ask(leader, m.MetadataRequest(), m.MetadataResponse).brokers


def test_retries_go_on_while_the_failure_may_be_temporary(connect):
    cluster = connect()
    failures = [
        Disconnected("away"),
        Refused(ErrorCode.NOT_COORDINATOR, "moved"),
        Refused(ErrorCode.LEADER_NOT_AVAILABLE, "no leader"),
    ]

    def attempt():
        if failures:
            raise failures.pop(0)
        return "done"

    assert cluster.persistently(attempt, "trying") == "done"


def test_retries_end_with_a_failure_for_good(connect):
    cluster = connect()

    def attempt(code):
        raise Refused(code, "trying")

    with pytest.raises(Refused, match="GROUP_AUTHORIZATION_FAILED"):
        cluster.persistently(lambda: attempt(ErrorCode.GROUP_AUTHORIZATION_FAILED), "trying")
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.persistently(
            lambda: attempt(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            "trying",
            give_up_on=[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        )


def test_retries_end_when_the_time_is_over(connect):
    def attempt():
        raise Disconnected("away")

    with pytest.raises(Disconnected, match="trying did not succeed within 20 ms.*away"):
        connect(api_timeout_ms=20).persistently(attempt, "trying")
