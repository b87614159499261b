"""A transaction whose coordinator, group coordinator and partitions are on two brokers.

Both brokers run on their own. The test tells them, as a controller does, that broker 1 leads the
transaction coordinator's partitions and ``t-0``, and broker 2 leads ``t-1`` and the offsets.
"""

import pytest

from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, LeaderEpoch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import Inside
from tests.fakes.transactional_client import TransactionalClient
from tests.fakes.waiting import wait_until

NONE = ErrorCode.NONE
FIRST_GENERATION = {"put": 11, "offsets": 3, "end": 3}
SECOND_GENERATION = {"put": 12, "offsets": 5, "end": 5}


def leader_of(topic, partition):
    if topic == "__transaction_state":
        return 1
    return 2 if topic == "__consumer_offsets" else partition + 1


class Pair:
    def __init__(self, brokers):
        self.brokers = brokers
        self.insides = {number: Inside(broker) for number, broker in brokers.items()}
        self.clients = {
            number: TransactionalClient(broker.bootstrap_servers)
            for number, broker in brokers.items()
        }
        for client in self.clients.values():  # creates the internal topics
            assert client.find("tx") == [NONE] and client.find("group", kind=0) == [NONE]
        self.decide(leader_of)

    def decide(self, leader_of):
        """Give each partition the leader that ``leader_of`` names, on both brokers."""
        entries = [self._entry(number) for number in self.brokers]
        for inside in self.insides.values():
            inside.do(lambda: self._apply(inside, entries, leader_of))  # noqa: B023
            inside.do(lambda: None)  # after the listeners of the metadata

    def _entry(self, number):
        host, _, port = self.brokers[number].bootstrap_servers.rpartition(":")
        return BrokerEntry(
            BrokerId(number), {"PLAINTEXT": Endpoint(host, int(port))}, None, broker_epoch=7
        )

    def _apply(self, inside, entries, leader_of):
        services = inside.services
        metadata = services.metadata.with_brokers(entries, BrokerId(1))
        states = []
        for topic in metadata.topics.values():
            for state in topic.partitions:
                leader = BrokerId(leader_of(topic.name, state.partition))
                replica = services.replicas.require(topic.name, state.partition)
                states.append(
                    state._replace(
                        leader=leader,
                        leader_epoch=LeaderEpoch(replica.partition.leader_epoch + 1),
                        isr=(leader,),
                        replicas=(BrokerId(1), BrokerId(2)),
                    )
                )
        for state in states:
            services.replicas.lead_or_follow(state, is_new=False)
        metadata.change_partitions(states)
        services.metadata_cache.publish(metadata)

    def close(self):
        for client in self.clients.values():
            client.sock.close()
        for broker in self.brokers.values():
            broker.stop()


@pytest.fixture
def pair():
    brokers = {
        number: Broker(
            config={
                "node.id": number,
                "offsets.topic.num.partitions": 2,
                "transaction.state.log.num.partitions": 2,
            },
            topics={"t": 2},
        ).start()
        for number in (1, 2)
    }
    pair = Pair(brokers)
    yield pair
    pair.close()


def found_by(client, key, kind):
    """The broker id that FindCoordinator answers."""
    request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    (found,) = client.ask(ApiKey.FIND_COORDINATOR, 6, request).coordinators
    assert found.error_code == NONE
    return found.node_id


@pytest.mark.parametrize("versions", [FIRST_GENERATION, SECOND_GENERATION], ids=["v1", "v2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_markers_and_offsets_reach_the_leaders_on_both_brokers(pair, versions, commit):
    coordinator, other = pair.clients[1], pair.clients[2]
    producer = coordinator.start("tx")
    if versions is FIRST_GENERATION:
        assert coordinator.add("tx", producer, "t", 0, 1) == [NONE, NONE]
        assert coordinator.add_offsets("tx", producer, "group") is NONE
    put = versions["put"]
    assert coordinator.put("tx", producer, "t", b"a", version=put) is NONE
    assert other.put("tx", producer, "t", b"b", partition=1, version=put) is NONE
    assert (
        other.commit_offsets("tx", "group", producer, "t", 5, version=versions["offsets"]) is NONE
    )
    assert other.last_stable_offset("t", 1) == 0
    ended = coordinator.end("tx", producer, commit, version=versions["end"])
    assert (ended[0] if isinstance(ended, tuple) else ended) is NONE
    state = "CompleteCommit" if commit else "CompleteAbort"
    wait_until(lambda: coordinator.state("tx") == state)
    assert coordinator.last_stable_offset("t", 0) == 2
    assert other.last_stable_offset("t", 1) == 2
    assert bool(other.partition_of("t", 1).aborted_transactions) is not commit
    committed = (5, NONE) if commit else (-1, NONE)
    assert other.committed_offset("group", "t", require_stable=True) == committed


def test_a_partition_that_was_not_added_is_refused_by_the_other_broker(pair):
    coordinator, other = pair.clients[1], pair.clients[2]
    producer = coordinator.start("tx")
    assert coordinator.add("tx", producer, "t", 0) is NONE
    refused = other.put("tx", producer, "t", b"b", partition=1)
    assert refused is ErrorCode.TRANSACTION_ABORTABLE
    assert other.put("tx", (producer[0], 7), "t", b"b", partition=1) is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert other.partition_of("t", 1).high_watermark == 0


def test_an_unreachable_coordinator_makes_the_client_retry(pair):
    producer = pair.clients[1].start("tx")
    pair.brokers[1].stop()
    other = pair.clients[2]
    for version in (11, 12):
        refused = other.put("tx", producer, "t", b"b", partition=1, version=version)
        assert refused is ErrorCode.NOT_ENOUGH_REPLICAS
    offsets = other.commit_offsets("tx", "group", producer, "t", 5)
    assert offsets is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_broker_that_does_not_coordinate_says_so_and_names_the_coordinator(pair):
    coordinator, other = pair.clients[1], pair.clients[2]
    producer = coordinator.start("tx")
    not_coordinator = ErrorCode.NOT_COORDINATOR
    assert other.init("tx")[0] is not_coordinator
    assert other.add("tx", producer, "t", 0) is not_coordinator
    assert other.end("tx", producer, True) is not_coordinator
    assert coordinator.commit_offsets("tx", "group", producer, "t", 5) is not_coordinator
    for client in (coordinator, other):
        assert found_by(client, "tx", kind=1) == 1
        assert found_by(client, "group", kind=0) == 2


def test_markers_wait_for_a_leader_that_is_away_and_follow_the_leader(pair):
    coordinator = pair.clients[1]
    producer = coordinator.start("tx")
    assert coordinator.add("tx", producer, "t", 0, 1) == [NONE, NONE]
    assert pair.clients[2].put("tx", producer, "t", b"b", partition=1) is NONE
    pair.brokers[2].stop()
    assert coordinator.end("tx", producer, True) is NONE
    assert coordinator.state("tx") == "PrepareCommit"
    pair.insides.pop(2)
    pair.brokers = {1: pair.brokers[1]}
    pair.decide(lambda topic, partition: 1)
    wait_until(lambda: coordinator.state("tx") == "CompleteCommit")


def test_a_marker_of_an_older_coordinator_is_fenced(pair):
    coordinator, other = pair.clients[1], pair.clients[2]
    producer = coordinator.start("tx")
    assert coordinator.add("tx", producer, "t", 1) is NONE
    assert other.put("tx", producer, "t", b"b", partition=1) is NONE
    assert other.mark(producer, True, "t", 1, coordinator_epoch=9) == [NONE]
    fenced = other.mark(producer, True, "t", 1, coordinator_epoch=8)
    assert fenced == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert other.mark(producer, True, "t", 0) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
