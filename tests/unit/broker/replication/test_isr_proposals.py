"""How ISR changes reach the controller, and what its answers mean."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from headrace.broker.replication.effects import Effects
from headrace.broker.replication.isr_proposals import IsrProposals
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiting
from headrace.client.errors import Disconnected
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition import Partition
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.logs import ORDERS, ORDERS_ID, Disk
from tests.fakes.network_peers import until
from tests.fakes.partition_states import a_state
from tests.fakes.scripted_peers import ScriptedPeers
from tests.fakes.standin import in_loop

ME, FOLLOWER, CONTROLLER = 1, 2, 3
LEADER_EPOCH, PARTITION_EPOCH = 3, 7
LAG_MS = 100


class Leader:
    def __init__(self, disk):
        loop = asyncio.get_running_loop()
        self.bugs = []
        self.waiting = Waiting(loop, self.bugs.append)
        self.effects = Effects(self.waiting)
        self.peers = ScriptedPeers()
        self.metadata = SimpleNamespace(current=ClusterMetadata("c", CONTROLLER))
        self.proposals = IsrProposals(
            ME,
            self.peers,
            self.metadata,
            self.effects,
            self.waiting,
            lambda: 41,
            self.bugs.append,
        )
        self.effects.connect(isr_proposals=self.proposals)
        log = disk.log()
        partition = Partition(ME, ReplicationSettings(lag_time_ms_max=LAG_MS), 0)
        self.replica = Replica(ORDERS, log, partition, validates_records=False)
        self.lead(LEADER_EPOCH)

    def lead(self, leader_epoch, partition_epoch=PARTITION_EPOCH):
        state = a_state(
            leader_epoch=leader_epoch,
            isr=(ME,),
            replicas=(ME, FOLLOWER),
            partition_epoch=partition_epoch,
        )
        self.effects.carry_out(self.replica, self.replica.apply(state, 0))

    @property
    def leadership(self):
        return self.replica.leadership

    def follower_joins(self):
        effects = self.leadership.follower_fetched(FOLLOWER, 0, 0, 52, 0)
        self.effects.carry_out(self.replica, effects)
        assert self.leadership.proposal is not None

    async def sent(self, count):
        await until(lambda: len(self.peers.requests) >= count)
        return self.peers.requests[count - 1]


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.crash()


@asynccontextmanager
async def a_leader(disk):
    leader = Leader(disk)
    yield leader
    await leader.proposals.stop()
    assert leader.bugs == []


def answer(isr=(ME, FOLLOWER), *, error_code=0, partition_epoch=8, leader_epoch=LEADER_EPOCH):
    response = m.AlterPartitionResponse
    data = response.PartitionData(
        partition_index=0,
        error_code=error_code,
        leader_id=ME,
        leader_epoch=leader_epoch,
        isr=list(isr),
        partition_epoch=partition_epoch,
    )
    return response(topics=[response.TopicData(topic_id=ORDERS_ID, partitions=[data])])


@in_loop
async def test_a_proposal_carries_the_epochs_that_guard_it_and_is_confirmed(disk):
    async with a_leader(disk) as leader:
        leader.follower_joins()
        request = await leader.sent(1)
        assert (request.broker_id, request.broker_epoch) == (ME, 41)
        (topic,) = request.topics
        assert bytes(topic.topic_id) == ORDERS_ID
        (data,) = topic.partitions
        assert (data.leader_epoch, data.partition_epoch) == (LEADER_EPOCH, PARTITION_EPOCH)
        members = [(member.broker_id, member.broker_epoch) for member in data.new_isr_with_epochs]
        assert members == [(ME, 41), (FOLLOWER, 52)]
        (peer,) = leader.peers.made
        assert (peer.broker_id, peer.client_id) == (CONTROLLER, "1")
        assert peer.options["negotiates"] is True
        leader.peers.answer(answer())
        await until(lambda: leader.leadership.isr == {ME, FOLLOWER})
        assert (leader.leadership.partition_epoch, leader.leadership.proposal) == (8, None)


@pytest.mark.parametrize(
    "failure",
    [
        Disconnected("gone"),
        m.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER),
        answer(error_code=ErrorCode.NOT_CONTROLLER),
        m.AlterPartitionResponse(),
    ],
    ids=["disconnected", "not controller", "partition unknown there", "no answer about it"],
)
def test_a_proposal_without_a_clear_answer_is_sent_again(disk, failure):
    @in_loop
    async def story():
        async with a_leader(disk) as leader:
            leader.follower_joins()
            await leader.sent(1)
            began_at = asyncio.get_running_loop().time()
            leader.peers.answer(failure)
            second = await leader.sent(2)
            assert asyncio.get_running_loop().time() - began_at >= 0.05
            assert second == leader.peers.requests[0]
            leader.peers.answer(answer())
            await until(lambda: leader.leadership.isr == {ME, FOLLOWER})

    story()


@in_loop
async def test_a_refusal_ends_the_proposal_or_waits_for_the_controller(disk):
    async with a_leader(disk) as leader:
        leader.follower_joins()
        leader.peers.answer(answer(error_code=ErrorCode.INELIGIBLE_REPLICA))
        await until(lambda: leader.leadership.proposal is None)
        leader.leadership.tick(0)
        leader.follower_joins()
        leader.peers.answer(answer(error_code=ErrorCode.FENCED_LEADER_EPOCH))
        await leader.sent(2)
        leader.lead(LEADER_EPOCH + 1)
        leader.follower_joins()
        assert (await leader.sent(3)).topics[0].partitions[0].leader_epoch == LEADER_EPOCH + 1


@in_loop
async def test_a_refusal_that_repeats_is_logged_once(disk, caplog):
    caplog.set_level("INFO", "headrace.replication")
    async with a_leader(disk) as leader:
        for _ in range(3):
            leader.follower_joins()
            leader.peers.answer(answer(error_code=ErrorCode.INELIGIBLE_REPLICA))
            await until(lambda: leader.leadership.proposal is None)
            leader.leadership.tick(0)
        assert caplog.text.count("INELIGIBLE_REPLICA") == 1


@in_loop
async def test_an_answer_of_another_leader_epoch_confirms_nothing(disk):
    async with a_leader(disk) as leader:
        leader.follower_joins()
        await leader.sent(1)
        leader.peers.answer(answer(leader_epoch=LEADER_EPOCH + 1))
        leader.lead(LEADER_EPOCH + 2)
        leader.follower_joins()
        await leader.sent(2)
        assert leader.leadership.isr == {ME}


@in_loop
async def test_a_controller_that_does_not_answer_is_left_for_its_successor(disk):
    async with a_leader(disk) as leader:
        leader.follower_joins()
        await leader.sent(1)
        leader.metadata.current = ClusterMetadata("c", 4)
        await leader.sent(2)
        assert [peer.broker_id for peer in leader.peers.made] == [CONTROLLER, 4]
        assert leader.peers.made[0].closed.is_set()
        leader.metadata.current = ClusterMetadata("c")
        leader.peers.answer(Disconnected("gone"))
        await until(lambda: leader.leadership.proposal is not None)
        leader.metadata.current = ClusterMetadata("c", 5)
        leader.peers.answer(answer())
        await until(lambda: leader.leadership.isr == {ME, FOLLOWER})


@in_loop
async def test_a_controller_that_is_elected_again_meanwhile_is_asked_on_a_new_connection(disk):
    async with a_leader(disk) as leader:
        leader.follower_joins()
        await leader.sent(1)
        (first,) = leader.peers.made
        close, before = first.close, leader.metadata.current

        async def close_and_elect():
            leader.metadata.current = before
            await close()

        first.close = close_and_elect
        leader.metadata.current = ClusterMetadata("c", 4)
        await leader.sent(2)
        assert [peer.broker_id for peer in leader.peers.made] == [CONTROLLER, CONTROLLER]
        leader.peers.answer(answer())
        await until(lambda: leader.leadership.isr == {ME, FOLLOWER})
