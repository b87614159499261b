"""The replica that a consumer reads from: in its rack, in sync, and with the offset."""

from headrace.core.leadership import Leadership, ReplicationSettings
from headrace.core.replica_selection import preferred_replica
from headrace.model.cluster_metadata import BrokerEntry
from tests.fakes.partition_states import a_state

RACKS = {1: "left", 2: "right", 3: "right", 4: "right"}
BROKERS = {broker_id: BrokerEntry(broker_id, {}, rack, 1) for broker_id, rack in RACKS.items()}


def a_leadership(**log_ends):
    state = a_state(isr=(1, 2, 3), replicas=(1, 2, 3, 4))
    leadership = Leadership(1, state, ReplicationSettings(), 10, 0, 0)
    for name, log_end in log_ends.items():
        leadership.follower_fetched(int(name[1:]), log_end, 0, 1, 0)
    return leadership


def test_the_follower_in_the_rack_with_the_most_records_is_preferred():
    assert preferred_replica("right", a_leadership(_2=8, _3=9), 5, BROKERS) == 3
    assert preferred_replica("right", a_leadership(_2=9, _3=9), 5, BROKERS) == 2


def test_the_leader_serves_its_own_rack_and_racks_without_a_replica():
    leadership = a_leadership(_2=9)
    assert preferred_replica("left", leadership, 5, BROKERS) is None
    assert preferred_replica("elsewhere", leadership, 5, BROKERS) is None


def test_only_live_in_sync_followers_with_the_offset_count():
    assert preferred_replica("right", a_leadership(_4=9), 5, BROKERS) is None
    assert preferred_replica("right", a_leadership(_2=4), 5, BROKERS) is None
    assert preferred_replica("right", a_leadership(_2=9), 5, {1: BROKERS[1]}) is None
