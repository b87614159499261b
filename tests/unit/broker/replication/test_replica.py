"""One hosted partition: which leader epochs it serves, and how it reports damage."""

import pytest

from headrace.broker.replication.replica import Replica
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition import Partition
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import BrokerId, Offset
from tests.fakes.logs import ORDERS, Disk
from tests.fakes.partition_states import a_state
from tests.fakes.standin import in_loop


@pytest.fixture
def replica(tmp_path):
    disk = Disk(tmp_path)
    partition = Partition(BrokerId(1), ReplicationSettings(1, 1 << 62), Offset(0))
    yield Replica(ORDERS, disk.log(), partition, validates_records=False)
    disk.crash()


def take_role(replica, leader):
    replica.apply(a_state(leader=leader, leader_epoch=5), 0)


def code_of(replica, leader_epoch):
    with pytest.raises(Rejected) as refused:
        replica.require_leadership_in(leader_epoch)
    return refused.value.code


@pytest.mark.parametrize("leader", [1, 2])
def test_another_leader_epoch_is_rejected_by_leaders_and_followers_alike(replica, leader):
    take_role(replica, leader)
    assert code_of(replica, 4) == ErrorCode.FENCED_LEADER_EPOCH
    assert code_of(replica, 6) == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("leader_epoch", [-1, 5])
def test_only_the_leader_serves_its_epoch(replica, leader_epoch):
    take_role(replica, leader=1)
    assert replica.require_leadership_in(leader_epoch) is replica.leadership


@pytest.mark.parametrize("leader_epoch", [-1, 5])
def test_a_follower_refers_a_client_with_its_epoch_to_the_leader(replica, leader_epoch):
    take_role(replica, leader=2)
    assert code_of(replica, leader_epoch) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("leader", [1, 2])
def test_a_failed_disk_is_reported_whatever_the_role_and_the_epoch(replica, leader):
    take_role(replica, leader)
    replica.log.directory.offline = "Input/output error"
    for leader_epoch in (-1, 4, 5, 6):
        assert code_of(replica, leader_epoch) == ErrorCode.KAFKA_STORAGE_ERROR


@in_loop
async def test_damaged_records_that_are_fetched_again_and_again_are_logged_once(replica, caplog):
    for _ in range(5):
        refusal = replica.unreadable(Corrupt("the checksum is wrong"))
        assert refusal.code == ErrorCode.CORRUPT_MESSAGE
    (line,) = caplog.records
    assert "orders-0 is damaged: the checksum is wrong" in line.getMessage()
