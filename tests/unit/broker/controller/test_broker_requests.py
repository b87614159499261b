"""The controller's requests carry what Kafka 3.9 sends, and survive their own encoding."""

from headrace.broker.controller import broker_requests
from headrace.broker.controller.broker_requests import Role, Sender, Stop, being_deleted
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from headrace.wire import schema
from tests.fakes.controllers import ID, a_state

SENDER = Sender(BrokerId(3), ControllerEpoch(5), "INTERNAL")
BROKERS = {
    BrokerId(1): BrokerEntry(
        BrokerId(1),
        {"PUBLIC": Endpoint("p", 1, "SASL_SSL"), "INTERNAL": Endpoint("i", 2, "PLAINTEXT")},
        "r",
        9,
    ),
    BrokerId(2): BrokerEntry(BrokerId(2), {"INTERNAL": Endpoint("j", 3, "SSL")}, None, 9),
}


def carried(message, api_version):
    out = bytearray()
    schema.encoder(type(message), api_version)(message, out)
    decoded, _ = schema.decoder(type(message), api_version)(bytes(out), 0, len(out))
    return decoded


def test_leader_and_isr_groups_partitions_by_topic_and_names_live_leaders():
    states = [a_state(partition=0), a_state(partition=1, leader=2), a_state(leader=7, topic="u")]
    request = carried(
        broker_requests.leader_and_isr(SENDER, 9, [Role(s, False) for s in states], BROKERS),
        broker_requests.LEADER_AND_ISR_VERSION,
    )
    assert [(t.topic_name, len(t.partition_states)) for t in request.topic_states] == [
        ("t", 2),
        ("u", 1),
    ]
    state = request.topic_states[0].partition_states[0]
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 4, 6)
    assert (state.isr, state.replicas, state.is_new) == ([1, 2, 3], [1, 2, 3], False)
    assert request.topic_states[0].topic_id == ID
    leaders = [(each.broker_id, each.host_name, each.port) for each in request.live_leaders]
    assert leaders == [(1, "i", 2), (2, "j", 3)]
    assert (request.type, request.ungrouped_partition_states) == (0, [])


def test_update_metadata_lists_all_live_brokers_also_without_partitions():
    request = carried(
        broker_requests.update_metadata(SENDER, 9, [], BROKERS),
        broker_requests.UPDATE_METADATA_VERSION,
    )
    assert request.topic_states == []
    assert [(b.id, b.rack) for b in request.live_brokers] == [(1, "r"), (2, None)]
    endpoints = [
        (e.listener, e.host, e.port, e.security_protocol) for e in request.live_brokers[0].endpoints
    ]
    assert endpoints == [("PUBLIC", "p", 1, 3), ("INTERNAL", "i", 2, 0)]


def test_a_partition_that_is_deleted_has_leader_minus_two_and_epoch_zero():
    states = [being_deleted(a_state()._replace(offline=(BrokerId(2),)))]
    request = carried(
        broker_requests.update_metadata(SENDER, 9, states, BROKERS),
        broker_requests.UPDATE_METADATA_VERSION,
    )
    (state,) = request.topic_states[0].partition_states
    assert (state.leader, state.leader_epoch, state.zk_version) == (-2, 0, 6)
    assert state.offline_replicas == [2]


def test_stop_replica_says_per_partition_whether_files_are_deleted():
    stops = {
        TopicPartition("t", 0): Stop(LeaderEpoch(4), delete=False),
        TopicPartition("t", 1): Stop(broker_requests.DELETION_EPOCH, delete=True),
    }
    request = carried(
        broker_requests.stop_replica(SENDER, 9, stops), broker_requests.STOP_REPLICA_VERSION
    )
    states = request.topic_states[0].partition_states
    assert [(s.partition_index, s.leader_epoch, s.delete_partition) for s in states] == [
        (0, 4, False),
        (1, -2, True),
    ]
