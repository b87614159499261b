"""Channels to brokers: the order of requests, merging, retries, and the end of a broker."""

import asyncio
from contextlib import asynccontextmanager

from headrace.broker.controller.broker_channels import BrokerChannels
from headrace.broker.controller.broker_requests import Sender, Stop
from headrace.broker.peers import Peers
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from headrace.wire import messages as m
from tests.fakes.controllers import a_state
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import ToldCluster, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def entry(broker_id, broker_epoch=7):
    endpoints = {"PLAINTEXT": Endpoint("told", broker_id)}
    return BrokerEntry(BrokerId(broker_id), endpoints, "rack", broker_epoch)


@asynccontextmanager
async def open_channels(*broker_ids):
    cluster = ToldCluster(*broker_ids)
    entries = {BrokerId(each): entry(each) for each in broker_ids}
    failed = []
    channels = BrokerChannels(
        Peers({}.get, "PLAINTEXT", cluster.dial),
        Sender(BrokerId(1), ControllerEpoch(3), "PLAINTEXT"),
        lambda: entries,
        timeout_s=0.2,
        on_failed=lambda broker_id, partitions: failed.append((broker_id, partitions)),
        fail=cluster.failures.append,
    )
    try:
        yield cluster, channels, entries, failed
    finally:
        channels.close_all()
        await channels.wait_closed()
        assert cluster.failures == []


@in_loop
async def test_roles_come_before_metadata_and_stops_come_last():
    async with open_channels(1) as (cluster, channels, entries, failed):
        channels.open(entries[1], first=())
        channel = channels[1]
        channel.stop_replica(T1, Stop(LeaderEpoch(2), delete=True))
        channel.update_metadata([a_state()])
        channel.lead_or_follow(a_state(), is_new=True)
        assert await channel.acknowledged() == []
        assert [type(each) for each in cluster.brokers[1].requests] == [
            m.UpdateMetadataRequest,
            m.LeaderAndIsrRequest,
            m.UpdateMetadataRequest,
            m.StopReplicaRequest,
        ]
        for request in cluster.brokers[1].requests:
            assert (request.controller_id, request.controller_epoch) == (1, 3)
            assert request.broker_epoch == 7
            assert not request.is_k_raft_controller


@in_loop
async def test_the_newest_state_replaces_older_ones_and_a_new_partition_stays_new():
    async with open_channels(1) as (cluster, channels, entries, failed):
        channels.open(entries[1], first=())
        channel = channels[1]
        channel.lead_or_follow(a_state(leader_epoch=4), is_new=True)
        channel.lead_or_follow(a_state(leader_epoch=5), is_new=False)
        channel.stop_replica(T1, Stop(LeaderEpoch(2), delete=False))
        channel.lead_or_follow(a_state(partition=1), is_new=False)
        await channel.acknowledged()
        (request,) = [
            r for r in cluster.brokers[1].requests if isinstance(r, m.LeaderAndIsrRequest)
        ]
        first, second = request.topic_states[0].partition_states
        assert (first.leader_epoch, first.is_new) == (5, True)
        assert (second.partition_index, second.is_new) == (1, False)
        assert cluster.brokers[1].count(m.StopReplicaRequest) == 0


@in_loop
async def test_a_request_is_sent_again_until_the_broker_answers():
    async with open_channels(1, 2) as (cluster, channels, entries, failed):
        cluster.brokers[2].reachable = False
        for each in entries.values():
            channels.open(each, first=[a_state()])
        assert not await channels.acknowledged(0.05)
        assert cluster.brokers[1].leader_of("t") == 1
        cluster.brokers[2].reachable = True
        assert await channels.acknowledged(5)
        assert cluster.brokers[2].leader_of("t") == 1


@in_loop
async def test_a_broker_that_does_not_answer_in_time_is_dialed_again():
    async with open_channels(1) as (cluster, channels, entries, failed):
        cluster.brokers[1].answers = False
        channels.open(entries[1], first=[a_state()])
        assert not await channels.acknowledged(0.25)
        cluster.brokers[1].answers = True
        assert await channels.acknowledged(5)
        assert cluster.brokers[1].leader_of("t") == 1


@in_loop
async def test_nothing_waits_for_a_broker_that_has_left():
    async with open_channels(1, 2) as (cluster, channels, entries, failed):
        cluster.brokers[2].reachable = False
        for each in entries.values():
            channels.open(each, first=())
        waiting = channels[2].acknowledged()
        gone = channels[2]
        channels.close(BrokerId(2))
        assert await waiting is None
        assert await gone.acknowledged() is None
        assert 2 not in channels
        assert await channels.acknowledged(5)


@in_loop
async def test_replicas_that_a_broker_cannot_serve_or_stop_are_reported():
    async with open_channels(1) as (cluster, channels, entries, failed):
        cluster.brokers[1].offline |= {T0, T1}
        channels.open(entries[1], first=())
        channel = channels[1]
        channel.lead_or_follow(a_state(), is_new=False)
        channel.stop_replica(T1, Stop(LeaderEpoch(-2), delete=True))
        assert await channel.acknowledged() == [T1]
        assert failed == [(1, [T0])]


@in_loop
async def test_a_request_that_a_broker_refuses_is_not_sent_again(caplog):
    async with open_channels(1) as (cluster, channels, entries, failed):
        cluster.brokers[1].controller_epoch = 4
        channels.open(entries[1], first=[a_state()])
        await until(lambda: "refused UpdateMetadataRequest" in caplog.text)
        channels[1].stop_replica(T0, Stop(LeaderEpoch(1), delete=True))
        assert await channels[1].acknowledged() == [T0]
        assert cluster.brokers[1].count(m.UpdateMetadataRequest) == 1
        assert cluster.brokers[1].deleted == []
        await asyncio.sleep(0)
