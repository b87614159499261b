"""Leaders and ISRs of a cluster: proposals, shutdowns, failed disks, elections on request."""

import pytest

from headrace.coordination import paths, values
from headrace.coordination.tree import ANY_VERSION
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import (
    make_topic,
    proposal,
    told_cluster,
    until,
)

T0 = TopicPartition("t", 0)


@in_loop
async def test_a_proposal_from_an_outdated_or_unknown_broker_is_refused_as_a_whole():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller)
        epoch = cluster.entries[1].broker_epoch
        for broker_id, broker_epoch in ((1, epoch - 1), (9, epoch)):
            with pytest.raises(Rejected) as refused:
                await controller.alter_isr(
                    broker_id, broker_epoch, [proposal(controller, "t", (1, 2))]
                )
            assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


@in_loop
async def test_a_proposal_sent_again_is_answered_with_its_result():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller)
        epoch = cluster.entries[1].broker_epoch
        wanted = proposal(controller, "t", (1, 2))
        first = await controller.alter_isr(1, epoch, [wanted])
        # Meanwhile the member has gone; the result of the first request still stands.
        assert await controller.alter_isr(1, epoch, [wanted]) == first
        (other,) = await controller.alter_isr(1, epoch, [wanted._replace(isr=(1, 3))])
        assert other.code == ErrorCode.INVALID_UPDATE_VERSION


@in_loop
async def test_one_stale_state_does_not_stop_the_others(caplog):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller)
        await make_topic(controller, name="u")
        session = cluster.session()
        strange = values.encode_state(
            controller.metadata.topics["t"].partitions[0]._replace(isr=(1, 3)), 1
        )
        await session.set(paths.state("t", 0), strange, ANY_VERSION)
        epoch = cluster.entries[1].broker_epoch
        answers = await controller.alter_isr(
            1, epoch, [proposal(controller, name, (1, 2)) for name in ("t", "u")]
        )
        assert answers[0].code == ErrorCode.INVALID_UPDATE_VERSION
        assert answers[1].isr == (1, 2)
        assert controller.metadata.topics["t"].partitions[0].isr == (1, 3)
        assert not controller.has_ended
        # An election from the outdated state is decided again.
        await session.set(paths.state("u", 0), strange, ANY_VERSION)
        cluster.crash(2)
        await until(lambda: cluster.brokers[3].topics["u"][0].isr == [1, 3])
        assert controller.metadata.topics["u"].partitions[0].isr == (1, 3)
        cluster.crash(3)
        await until(lambda: cluster.brokers[1].topics["u"][0].isr == [1])
        await until(lambda: cluster.brokers[1].topics["t"][0].isr == [1])
        assert cluster.fenced == []


@in_loop
async def test_a_broker_that_shuts_down_gives_up_leaderships_first():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (3, 1), (1, 3), (3,))
        epoch = cluster.entries[3].broker_epoch
        assert await controller.shut_down(3, epoch) == []
        assert await controller.term.channels.acknowledged(5)
        told = cluster.brokers[1].topics["t"]
        assert [(told[p].leader, told[p].isr, told[p].leader_epoch) for p in range(3)] == [
            (1, [1], 1),
            (1, [1], 1),
            (3, [3], 0),
        ]
        assert cluster.brokers[1].live_brokers == [1, 2, 3]
        assert told[0].offline_replicas == [3]
        leaving = cluster.brokers[3]
        assert leaving.roles[T0].leader == 1
        (stop,) = [each for each in leaving.requests if isinstance(each, m.StopReplicaRequest)]
        (state,) = stop.topic_states[0].partition_states
        assert (state.partition_index, state.leader_epoch, state.delete_partition) == (1, 0, False)
        # It is not taken back while it is leaving, and after its return it is a newcomer.
        (answer,) = await controller.alter_isr(
            1, cluster.entries[1].broker_epoch, [proposal(controller, "t", (1, 3))]
        )
        assert answer.code == ErrorCode.INELIGIBLE_REPLICA
        cluster.crash(3)
        await cluster.register(3)
        await until(lambda: cluster.brokers[1].topics["t"][0].offline_replicas == [])


@in_loop
async def test_the_next_controller_elects_no_broker_that_shuts_down():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (3, 1), name="t")
        for _ in range(2):  # a broker may shut down more than once
            assert await controller.shut_down(3, cluster.entries[3].broker_epoch) == []
        await cluster.session().delete(paths.CONTROLLER, ANY_VERSION)
        controller = await cluster.start(2)
        isr, epoch = proposal(controller, "t", (1, 3)), cluster.entries[1].broker_epoch
        (answer,) = await controller.alter_isr(1, epoch, [isr])
        assert answer.code == ErrorCode.INELIGIBLE_REPLICA
        # After its return it may lead again.
        cluster.crash(3)
        await cluster.register(3)
        await until(lambda: controller.metadata.topics["t"].partitions[0].offline == ())
        (answer,) = await controller.alter_isr(1, epoch, [isr])
        assert answer.isr == (1, 3)
        assert await controller.elect_leaders([T0], unclean=False) == [None]


@in_loop
async def test_a_broker_that_nobody_can_replace_must_stay():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (3, 2))
        cluster.crash(2)
        await until(lambda: controller.metadata.topics["t"].partitions[0].isr == (3,))
        assert await controller.shut_down(3, cluster.entries[3].broker_epoch) == [T0]
        for broker_id, epoch, code in (
            (3, 1, ErrorCode.STALE_BROKER_EPOCH),
            (9, -1, ErrorCode.UNKNOWN_SERVER_ERROR),
        ):
            with pytest.raises(Rejected) as refused:
                await controller.shut_down(broker_id, epoch)
            assert refused.value.code == code


@in_loop
async def test_a_failed_log_directory_gives_its_partitions_other_leaders():
    async with told_cluster() as cluster:
        controller = await cluster.start(2)
        await make_topic(controller, (1, 2), (2, 1), (1, 3))
        cluster.brokers[1].offline |= {T0, TopicPartition("t", 1)}
        session = cluster.session()
        event = values.encode_log_dir_event(1)
        await session.create(paths.LOG_DIR_EVENT_PREFIX, event, sequential=True)
        await session.create(paths.LOG_DIR_EVENT_PREFIX, b"{", sequential=True)
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        told = cluster.brokers[3].topics["t"]
        assert [(told[p].leader, told[p].isr, told[p].leader_epoch) for p in range(3)] == [
            (2, [2], 1),
            (2, [2], 1),
            (1, [1, 3], 0),
        ]
        assert told[0].offline_replicas == [1]
        assert await session.children(paths.LOG_DIR_EVENTS) == []
        await until(lambda: cluster.brokers[1].count(m.StopReplicaRequest) >= 1)


@in_loop
async def test_leaders_return_to_preferred_replicas_on_request_and_by_kafkas_node():
    async with told_cluster() as cluster:
        controller = await cluster.start(2)
        await make_topic(controller)
        cluster.crash(1)
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        await cluster.register(1)
        await until(lambda: 1 in controller.metadata.brokers)
        (refusal,) = await controller.elect_leaders([T0], unclean=False)
        assert refusal.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        epoch = cluster.entries[2].broker_epoch
        await controller.alter_isr(2, epoch, [proposal(controller, "t", (2, 3, 1))])
        session = cluster.session()
        wanted = values.encode_partitions([T0, TopicPartition("ghost", 1)])
        await session.create(paths.PREFERRED_REPLICA_ELECTION, wanted)
        await until(lambda: cluster.brokers[3].leader_of("t") == 1)
        assert cluster.brokers[3].topics["t"][0].leader_epoch == 2
        ghost = TopicPartition("ghost", 1)
        refusals = await controller.elect_leaders([ghost, T0], unclean=False)
        assert [each.code for each in refusals] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.ELECTION_NOT_NEEDED,
        ]
        assert await session.get(paths.PREFERRED_REPLICA_ELECTION) is None


@in_loop
async def test_an_unclean_election_needs_the_topics_permission_or_a_request():
    async with told_cluster() as cluster:
        controller = await cluster.start(2)
        await make_topic(controller, (1, 2))
        epoch = cluster.entries[1].broker_epoch
        await controller.alter_isr(1, epoch, [proposal(controller, "t", (1,))])
        cluster.crash(1)
        await until(lambda: cluster.brokers[3].leader_of("t") == -1)
        assert await controller.elect_leaders([T0], unclean=True) == [None]
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        assert controller.metadata.topics["t"].partitions[0].isr == (2,)


@in_loop
async def test_a_notice_of_changed_isrs_makes_the_controller_read_them():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller)
        session = cluster.session()
        state = controller.metadata.topics["t"].partitions[0]._replace(isr=(1, 2))
        await session.set(paths.state("t", 0), values.encode_state(state, 1), ANY_VERSION)
        await session.create(
            paths.ISR_CHANGE_PREFIX, values.encode_partitions([T0]), sequential=True
        )
        await until(lambda: cluster.brokers[3].topics["t"][0].isr == [1, 2])
        assert await session.children(paths.ISR_CHANGES) == []


@in_loop
async def test_producer_ids_are_allocated_to_registered_brokers():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        epoch = cluster.entries[2].broker_epoch
        assert await controller.allocate_producer_ids(2, epoch) == range(1000)
        node = await cluster.session().get(paths.PRODUCER_ID_BLOCK)
        assert values.decode_producer_id_block(node.value).broker_id == 2
        for broker_id, code in (
            (2, ErrorCode.STALE_BROKER_EPOCH),
            (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ):
            with pytest.raises(Rejected) as refused:
                await controller.allocate_producer_ids(broker_id, epoch - 1)
            assert refused.value.code == code
