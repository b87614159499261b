"""Replication between brokers on loopback: followers copy, the ISR decides, leaders change."""

import asyncio
from contextlib import asynccontextmanager

from headrace.core.replica_selection import RACK_AWARE_SELECTOR
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.logs import batch, read_bytes
from tests.fakes.replicated import TOPIC_ID, replicated, until
from tests.fakes.standin import in_loop


@in_loop
async def test_acks_all_is_answered_when_every_replica_has_the_record(tmp_path):
    async with replicated(tmp_path) as cluster:
        answer = await cluster.produce(1, b"a", b"b")
        assert (answer.error_code, answer.base_offset) == (0, 0)
        for broker_id in cluster.ids:
            assert cluster.values(broker_id) == [b"a", b"b"]
        assert cluster.replica(1).high_watermark == 2
        assert cluster.proposals == []


@in_loop
async def test_followers_learn_the_high_watermark_with_the_next_response(tmp_path):
    async with replicated(tmp_path) as cluster:
        await cluster.produce(1, b"a")
        await until(lambda: cluster.replica(2).high_watermark == 1)


@in_loop
async def test_replicas_have_the_same_bytes(tmp_path):
    async with replicated(tmp_path, 2, partitions=3) as cluster:
        for number in range(20):
            await cluster.produce(1, b"%d" % number, partition=number % 3)
        for partition in range(3):
            logs = [cluster.log(broker_id, partition) for broker_id in (1, 2)]
            contents = [read_bytes(log, 0) for log in logs]
            assert contents[0] == contents[1] != b""


@in_loop
async def test_a_follower_takes_over_and_the_old_leader_drops_what_it_alone_has(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.produce(1, b"a")
        await until(lambda: cluster.replica(2).high_watermark == 1)
        # The follower leads now; the old leader has not heard of it, and takes another record.
        cluster.decide(2, (2,), tell=(2,))
        lost = await cluster.produce(1, b"lost", acks=1)
        assert lost.error_code == 0
        await cluster.produce(2, b"b")
        assert cluster.values(1) == [b"a", b"lost"]
        cluster.tell(1)
        await until(lambda: cluster.values(1) == [b"a", b"b"])
        await until(lambda: cluster.states[0].isr == (1, 2))
        assert cluster.log(1).leader_epochs.entries == cluster.log(2).leader_epochs.entries


@in_loop
async def test_a_follower_that_stops_fetching_leaves_the_isr(tmp_path):
    async with replicated(tmp_path, 3, replica_lag_time_max_ms="500") as cluster:
        await cluster.produce(1, b"a")
        services = cluster.services(3)
        await services.replicas.stop()
        answer = await cluster.produce(1, b"b", timeout_ms=20_000)
        assert answer.error_code == 0
        assert cluster.states[0].isr == (1, 2)


@in_loop
async def test_a_broker_that_loses_leadership_answers_waiting_writes_at_once(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.services(2).replicas.stop()
        waiting = asyncio.create_task(cluster.produce(1, b"a", timeout_ms=60_000))
        await until(lambda: cluster.log(1).log_end == 1)
        cluster.decide(2, (2,), tell=(1,))
        answer = await waiting
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_loop
async def test_a_batch_larger_than_all_fetch_limits_still_replicates(tmp_path):
    limits = {"replica_fetch_max_bytes": "1000", "replica_fetch_response_max_bytes": "2000"}
    async with replicated(tmp_path, 2, partitions=2, **limits) as cluster:
        await asyncio.gather(
            *(cluster.produce(1, bytes([n]) * 5000, partition=n % 2) for n in range(10))
        )
        for partition in range(2):
            assert sorted(cluster.values(1, partition)) == sorted(cluster.values(2, partition))
            assert len(cluster.values(2, partition)) == 5


@in_loop
async def test_without_fetch_sessions_all_partitions_replicate(tmp_path):
    no_sessions = {"max_incremental_fetch_session_cache_slots": "0"}
    async with replicated(tmp_path, 2, partitions=3, **no_sessions) as cluster:
        for number in range(6):
            answer = await cluster.produce(1, b"%d" % number, partition=number % 3)
            assert answer.error_code == 0
        assert [len(cluster.values(2, partition)) for partition in range(3)] == [2] * 3


@in_loop
async def test_several_fetchers_share_the_partitions_of_a_leader(tmp_path):
    async with replicated(tmp_path, 2, partitions=7, num_replica_fetchers="3") as cluster:
        for number in range(14):
            answer = await cluster.produce(1, b"%d" % number, partition=number % 7)
            assert answer.error_code == 0
        links = cluster.services(1).limits.links
        await until(lambda: len(links) == 3)  # those of the producers are closed
        assert [len(cluster.values(2, partition)) for partition in range(7)] == [2] * 7
        for partition in range(7):
            cluster.decide(2, partition=partition)
        await until(lambda: not links)


@in_loop
async def test_a_follower_whose_records_the_leader_deleted_starts_over_at_its_log_start(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.produce(1, b"a")
        cluster.decide(1, (1,), tell=(1,))
        cluster.services(2).replicas.stop_replica(
            cluster.states[0].topic_partition, cluster.states[0].leader_epoch, delete=False
        )
        for value in (b"b", b"c", b"d"):
            await cluster.produce(1, value)
        await delete_records(cluster, 1, 3, timeout_ms=10)
        cluster.decide(1, (1,))
        await until(lambda: cluster.values(2) == [b"d"])
        assert cluster.log(2).log_start == 3
        await until(lambda: cluster.states[0].isr == (1, 2))


@in_loop
async def test_delete_records_waits_for_the_followers(tmp_path):
    async with replicated(tmp_path, 3) as cluster:
        for value in (b"a", b"b", b"c"):
            await cluster.produce(1, value)
        assert await delete_records(cluster, 1, 2) == (0, 2)
        assert [cluster.log(broker_id).log_start for broker_id in cluster.ids] == [2, 2, 2]
        await cluster.services(3).replicas.stop()
        code, low_watermark = await delete_records(cluster, 1, 3, timeout_ms=50)
        assert (code, low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)


@asynccontextmanager
async def waiting_deletion(tmp_path):
    """A DeleteRecords request that waits for a follower that does not fetch."""
    async with replicated(tmp_path, 2) as cluster:
        await cluster.produce(1, b"a")
        await cluster.services(2).replicas.stop()
        deleting = asyncio.create_task(delete_records(cluster, 1, 1, timeout_ms=60_000))
        await until(lambda: cluster.log(1).log_start == 1)
        await until(lambda: cluster.services(1).waiting.all())
        yield cluster, deleting


@in_loop
async def test_delete_records_is_answered_at_once_if_leadership_is_lost(tmp_path):
    async with waiting_deletion(tmp_path) as (cluster, deleting):
        cluster.decide(2, (2,), tell=(1,))
        assert await deleting == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@in_loop
async def test_delete_records_is_answered_at_once_if_the_disk_fails(tmp_path):
    async with waiting_deletion(tmp_path) as (cluster, deleting):
        cluster.services(1).logs.directories[0].take_offline("it broke")
        assert await deleting == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@in_loop
async def test_delete_records_is_answered_at_once_if_the_topic_is_deleted(tmp_path):
    async with waiting_deletion(tmp_path) as (cluster, deleting):
        services = cluster.services(1)
        await services.replicas.delete([TopicPartition("t", 0)])
        services.waiting.serve()
        assert await deleting == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def delete_records(cluster, broker_id, offset, timeout_ms=5000):
    request = m.DeleteRecordsRequest
    partition = request.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = request.DeleteRecordsTopic(name="t", partitions=[partition])
    connection = await cluster.connect(broker_id)
    answer = await connection.request(
        request(topics=[topic], timeout_ms=timeout_ms), m.DeleteRecordsResponse, api_version=2
    )
    await connection.close()
    result = answer.topics[0].partitions[0]
    return result.error_code, result.low_watermark


@in_loop
async def test_a_client_at_the_wrong_broker_learns_who_leads(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        connection = await cluster.connect(2)
        host, port = cluster.nodes[1].addresses["PLAINTEXT"]
        produced = await connection.request(produce_request(), m.ProduceResponse, api_version=11)
        (partition,) = produced.responses[0].partition_responses
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 0)
        (endpoint,) = produced.node_endpoints
        assert (endpoint.node_id, endpoint.host, endpoint.port) == (1, host, port)
        cluster.decide(1)
        fetched = await fetch(connection, current_leader_epoch=0)
        (partition,) = fetched.responses[0].partitions
        assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 1)
        assert [endpoint.node_id for endpoint in fetched.node_endpoints] == [1]
        await connection.close()


@in_loop
async def test_a_repeated_produce_request_learns_who_leads_when_leadership_is_lost(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        connection = await cluster.connect(1)
        for _ in range(2):  # from the second one on, the broker remembers the shape
            await connection.request(produce_request(), m.ProduceResponse, api_version=11)
        await cluster.services(2).replicas.stop()
        waiting = asyncio.create_task(
            connection.request(produce_request(), m.ProduceResponse, api_version=11)
        )
        await until(lambda: cluster.log(1).log_end == 3)
        cluster.decide(2, (2,), tell=(1,))
        produced = await waiting
        (partition,) = produced.responses[0].partition_responses
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.current_leader.leader_id == 2
        await connection.close()


def produce_request():
    request = m.ProduceRequest
    data = request.PartitionProduceData(index=0, records=batch(b"x"))
    topic = request.TopicProduceData(name="t", partition_data=[data])
    return request(acks=-1, timeout_ms=60_000, topic_data=[topic])


async def fetch(connection, offset=0, *, rack_id="", max_wait_ms=0, current_leader_epoch=-1):
    request = m.FetchRequest
    partition = request.FetchPartition(
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
        current_leader_epoch=current_leader_epoch,
    )
    topic = request.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
    return await connection.request(
        request(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[topic],
            rack_id=rack_id,
            session_epoch=-1,
        ),
        m.FetchResponse,
        api_version=17,
    )


@in_loop
async def test_a_consumer_reads_from_the_replica_in_its_rack(tmp_path):
    selector = {"replica_selector_class": RACK_AWARE_SELECTOR}
    async with replicated(tmp_path, 3, **selector) as cluster:
        await cluster.produce(1, b"a")
        leader, follower = await cluster.connect(1), await cluster.connect(2)
        for rack, preferred in (("rack-2", 2), ("rack-1", -1), ("elsewhere", -1), ("", -1)):
            answer = await fetch(leader, rack_id=rack)
            (partition,) = answer.responses[0].partitions
            assert partition.preferred_read_replica == preferred
            assert bool(partition.records) is (preferred == -1)
        await until(lambda: cluster.replica(2).high_watermark == 1)
        waiting = asyncio.create_task(fetch(follower, 1, rack_id="rack-2", max_wait_ms=10_000))
        (partition,) = (await fetch(follower, rack_id="rack-2")).responses[0].partitions
        assert (partition.error_code, partition.high_watermark) == (0, 1)
        assert partition.preferred_read_replica == -1
        await cluster.produce(1, b"b")
        (partition,) = (await waiting).responses[0].partitions
        assert partition.high_watermark == 2
        await leader.close()
        await follower.close()


@in_loop
async def test_a_controller_decision_is_refused_with_the_reason(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        assert cluster.tell(1) == ErrorCode.STALE_CONTROLLER_EPOCH
        state = cluster.states[0]._replace(leader_epoch=5)
        replicas = cluster.services(1).replicas
        other = state._replace(topic_id=bytes(16))
        assert replicas.lead_or_follow(other, is_new=False) == ErrorCode.INCONSISTENT_TOPIC_ID
        unknown = state._replace(topic="u", topic_id=bytes(range(1, 17)))
        assert replicas.lead_or_follow(unknown, is_new=False) == ErrorCode.KAFKA_STORAGE_ERROR
        assert replicas.get("u", 0) is None
        following = unknown._replace(leader=2)
        assert replicas.lead_or_follow(following, is_new=False) == ErrorCode.NONE
        name = unknown.topic_partition
        assert replicas.stop_replica(name, 4, delete=True) == ErrorCode.FENCED_LEADER_EPOCH
        assert replicas.stop_replica(name, -2, delete=True) == ErrorCode.NONE
        assert replicas.stop_replica(name, -2, delete=True) == ErrorCode.NONE
        assert replicas.get("u", 0) is None


@in_loop
async def test_a_bumped_leader_epoch_keeps_waiting_writes(tmp_path):
    async with replicated(tmp_path, 3) as cluster:
        await cluster.services(3).replicas.stop()
        waiting = asyncio.create_task(cluster.produce(1, b"a", timeout_ms=60_000))
        await until(lambda: cluster.log(1).log_end == 1)
        cluster.decide(1, (1, 2), tell=(1, 2))
        assert (await waiting).error_code == 0


@in_loop
async def test_too_few_replicas_refuse_before_and_after_the_append(tmp_path):
    async with replicated(tmp_path, 2, min_insync_replicas="2") as cluster:
        assert (await cluster.produce(1, b"a")).error_code == 0
        cluster.confirms_isr = False
        await cluster.services(2).replicas.stop()
        answer = await cluster.produce(1, b"b", timeout_ms=100)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        cluster.decide(1, (1,), tell=(1,))
        answer = await cluster.produce(1, b"c")
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert cluster.replica(1).high_watermark == 1


@in_loop
async def test_a_follower_retries_a_leader_that_does_not_know_yet_or_is_gone(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.produce(1, b"a")
        cluster.decide(1, tell=(2,))  # the leader hears of its new epoch later
        cluster.tell(1)
        assert (await cluster.produce(1, b"b")).error_code == 0
        await until(lambda: cluster.values(2) == [b"a", b"b"])


@in_loop
async def test_latest_is_not_available_until_the_followers_show_a_new_leader_what_they_have(
    tmp_path,
):
    # A follower hears of the high watermark with its next records, so that of broker 2 is stale.
    async with replicated(tmp_path, 3, replica_fetch_wait_max_ms="60000") as cluster:
        await cluster.produce(1, b"a", b"b")
        cluster.decide(2, tell=(2,))
        assert cluster.replica(2).high_watermark == 0
        assert await latest(cluster, 2) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await latest(cluster, 2, replica_id=3) == (0, 2)
        assert await end_of_epoch(cluster, 2, 0) == (0, 0, 2)
        for broker_id in (1, 3):
            cluster.tell(broker_id)
        await until(lambda: cluster.replica(2).high_watermark == 2)
        assert await latest(cluster, 2) == (0, 2)


async def latest(cluster, broker_id, replica_id=-1):
    request = m.ListOffsetsRequest
    partition = request.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = request.ListOffsetsTopic(name="t", partitions=[partition])
    connection = await cluster.connect(broker_id)
    answer = await connection.request(
        request(replica_id=replica_id, topics=[topic]), m.ListOffsetsResponse, api_version=9
    )
    await connection.close()
    (found,) = answer.topics[0].partitions
    return found.error_code, found.offset


async def end_of_epoch(cluster, broker_id, leader_epoch):
    request = m.OffsetForLeaderEpochRequest
    partition = request.OffsetForLeaderPartition(partition=0, leader_epoch=leader_epoch)
    topic = request.OffsetForLeaderTopic(topic="t", partitions=[partition])
    connection = await cluster.connect(broker_id)
    answer = await connection.request(
        request(replica_id=3, topics=[topic]), m.OffsetForLeaderEpochResponse, api_version=4
    )
    await connection.close()
    (found,) = answer.topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


@in_loop
async def test_a_follower_that_lost_its_log_leaves_the_isr_and_gets_everything_again(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.produce(1, b"a", b"b")
        state = cluster.states[0]
        services = cluster.services(2)
        services.replicas.stop_replica(state.topic_partition, state.leader_epoch, delete=True)
        cluster.decide(1)
        assert cluster.states[0].isr == (1, 2)
        await until(lambda: cluster.values(2) == [b"a", b"b"])
        await until(lambda: [sorted(p.isr) for p in cluster.proposals] == [[1], [1, 2]])


@in_loop
async def test_a_new_leader_knows_the_sequences_of_producers(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        for sequence in range(3):
            sent = batch(b"x", producer_id=7, base_sequence=sequence)
            assert await append(cluster, 1, sent) == (0, sequence)
        cluster.decide(2)
        await until(lambda: cluster.replica(2).leadership is not None)
        again = batch(b"x", producer_id=7, base_sequence=2)
        assert await append(cluster, 2, again) == (0, 2)
        gap = batch(b"x", producer_id=7, base_sequence=9)
        code, _ = await append(cluster, 2, gap)
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def append(cluster, broker_id, records):
    request = produce_request()
    request.topic_data[0].partition_data[0].records = records
    connection = await cluster.connect(broker_id)
    answer = await connection.request(request, m.ProduceResponse, api_version=11)
    await connection.close()
    (outcome,) = answer.responses[0].partition_responses
    return outcome.error_code, outcome.base_offset
