"""A raw client for transactions: every request, every version, every answer."""

import time

from headrace.model.errors import ErrorCode
from headrace.records.batch import headers
from headrace.records.record import Record, build_batch, iter_records
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.raw_client import RawClient

TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class TransactionalClient(RawClient):
    """Answers are error codes, or tuples that begin with one."""

    def find(self, *keys, kind=1, version=6):
        request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        response = self.ask(ApiKey.FIND_COORDINATOR, version, request)
        return [ErrorCode(one.error_code) for one in response.coordinators]

    def init(self, name, *, timeout_ms=60_000, expected=(-1, -1), version=5):
        request = m.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        response = self.ask(ApiKey.INIT_PRODUCER_ID, version, request)
        return ErrorCode(response.error_code), response.producer_id, response.producer_epoch

    def start(self, name, **settings):
        """Retry until there are a producer ID and an epoch."""
        self.find(name)
        give_up_at = time.monotonic() + 20
        while time.monotonic() < give_up_at:
            code, *producer = self.init(name, **settings)
            if code is ErrorCode.NONE:
                return tuple(producer)
            assert code in TRY_AGAIN
        raise AssertionError(f"{name} got no producer id: {code.name}")

    def add(self, name, producer, topic, *partitions, version=3):
        request = m.AddPartitionsToTxnRequest
        response = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            request(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=[
                    request.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
                ],
            ),
        )
        codes = [
            ErrorCode(partition.partition_error_code)
            for found in response.results_by_topic_v3_and_below
            for partition in found.results_by_partition
        ]
        return codes[0] if len(codes) == 1 else codes

    def add_many(self, *transactions, verify_only=False, version=5):
        """Each (name, producer, topic, partitions); the codes of each, by name."""
        request = m.AddPartitionsToTxnRequest
        response = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            request(
                transactions=[
                    request.AddPartitionsToTxnTransaction(
                        transactional_id=name,
                        producer_id=producer[0],
                        producer_epoch=producer[1],
                        verify_only=verify_only,
                        topics=[request.AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
                    )
                    for name, producer, topic, partitions in transactions
                ]
            ),
        )
        return {
            result.transactional_id: [
                ErrorCode(partition.partition_error_code)
                for topic in result.topic_results
                for partition in topic.results_by_partition
            ]
            for result in response.results_by_transaction
        }

    def add_offsets(self, name, producer, group, *, version=3):
        request = m.AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        return ErrorCode(self.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code)

    def end(self, name, producer, commit, *, version=3):
        request = m.EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        response = self.ask(ApiKey.END_TXN, version, request)
        code = ErrorCode(response.error_code)
        return code if version < 5 else (code, response.producer_id, response.producer_epoch)

    def put(self, name, producer, topic, *values, sequence=0, partition=0, version=11, acks=-1):
        """Produce one transactional batch; its code."""
        request = m.ProduceRequest
        response = self.ask(
            ApiKey.PRODUCE,
            version,
            request(
                transactional_id=name,
                acks=acks,
                timeout_ms=10_000,
                topic_data=[
                    request.TopicProduceData(
                        name=topic if isinstance(topic, str) else "",
                        topic_id=topic if isinstance(topic, bytes) else bytes(16),
                        partition_data=[
                            request.PartitionProduceData(
                                index=partition,
                                records=transactional_batch(producer, sequence, *values),
                            )
                        ],
                    )
                ],
            ),
        )
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def commit_offsets(
        self, name, group, producer, topic, offset, *, version=3, partition=0, **member
    ):
        request = m.TxnOffsetCommitRequest
        response = self.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            request(
                transactional_id=name,
                group_id=group,
                producer_id=producer[0],
                producer_epoch=producer[1],
                topics=[
                    request.TxnOffsetCommitRequestTopic(
                        name=topic,
                        partitions=[
                            request.TxnOffsetCommitRequestPartition(
                                partition_index=partition,
                                committed_offset=offset,
                                committed_metadata="",
                            )
                        ],
                    )
                ],
                **member,
            ),
        )
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def committed_offset(self, group, topic, partition=0, *, require_stable=False):
        request = m.OffsetFetchRequest
        response = self.ask(
            ApiKey.OFFSET_FETCH,
            8,
            request(
                require_stable=require_stable,
                groups=[
                    request.OffsetFetchRequestGroup(
                        group_id=group,
                        topics=[
                            request.OffsetFetchRequestTopics(
                                name=topic, partition_indexes=[partition]
                            )
                        ],
                    )
                ],
            ),
        )
        found = response.groups[0].topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)

    def describe(self, *names):
        request = m.DescribeTransactionsRequest(transactional_ids=list(names))
        return self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states

    def state(self, name):
        (found,) = self.describe(name)
        return found.transaction_state

    def list(self, *, version=2, **filters):
        return self.ask(ApiKey.LIST_TRANSACTIONS, version, m.ListTransactionsRequest(**filters))

    def producers(self, topic, partition=0):
        request = m.DescribeProducersRequest
        response = self.ask(
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            request(topics=[request.TopicRequest(name=topic, partition_indexes=[partition])]),
        )
        (found,) = response.topics[0].partitions
        return found

    def mark(
        self,
        producer,
        commit,
        topic,
        *partitions,
        coordinator_epoch=0,
        transaction_version=0,
        version=2,
    ):
        request = m.WriteTxnMarkersRequest
        response = self.ask(
            ApiKey.WRITE_TXN_MARKERS,
            version,
            request(
                markers=[
                    request.WritableTxnMarker(
                        producer_id=producer[0],
                        producer_epoch=producer[1],
                        transaction_result=commit,
                        coordinator_epoch=coordinator_epoch,
                        transaction_version=transaction_version,
                        topics=[
                            request.WritableTxnMarkerTopic(
                                name=topic, partition_indexes=list(partitions)
                            )
                        ],
                    )
                ]
            ),
        )
        return [
            ErrorCode(partition.error_code)
            for partition in response.markers[0].topics[0].partitions
        ]

    def partition_of(self, topic, partition=0, *, committed=True, offset=0, max_bytes=1 << 24):
        """One partition of a fetch: its offsets, the aborted transactions, the records."""
        request = m.FetchRequest
        response = self.ask(
            ApiKey.FETCH,
            11,
            request(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 24,
                isolation_level=1 if committed else 0,
                session_epoch=-1,
                topics=[
                    request.FetchTopic(
                        topic=topic,
                        partitions=[
                            request.FetchPartition(
                                partition=partition,
                                fetch_offset=offset,
                                partition_max_bytes=max_bytes,
                            )
                        ],
                    )
                ],
            ),
        )
        return response.responses[0].partitions[0]

    def last_stable_offset(self, topic, partition=0):
        return self.partition_of(topic, partition).last_stable_offset


def transactional_batch(producer, sequence, *values):
    now = int(time.time() * 1000)
    return build_batch(
        [Record(index, now, None, value, ()) for index, value in enumerate(values)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=True,
    )


def records_in(data):
    """Every record of the batches in a fetch, control records too."""
    found = []
    for position, header in headers(data or b""):
        found += iter_records(data[position : position + header.size])
    return found
