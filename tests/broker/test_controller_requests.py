"""LeaderAndIsr, UpdateMetadata and StopReplica at a broker: epochs, roles, and files."""

import pytest

from headrace.core.partition import EPOCH_DURING_DELETE
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

ORDERS, OTHER = b"o" * 16, b"p" * 16
NEWER, OLDER = 1000, 0  # controller epochs, compared to that of the broker's own first term
ME = 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ClusterOnOneLoop(tmp_path_factory.mktemp("controller"), 1) as running:
        wait_until(lambda: running.controller_id == ME)
        # From now on the broker obeys the test, which has a newer epoch than its own controller.
        yield running


class Controller:
    """The test as controller of a broker."""

    def __init__(self, cluster, client):
        self.client = client
        self.services = cluster.brokers[ME].services
        self.broker_epoch = self.services.membership.broker_epoch

    def _epochs(self, controller_epoch, broker_epoch):
        return {
            "controller_id": 9,
            "controller_epoch": controller_epoch,
            "broker_epoch": self.broker_epoch if broker_epoch is None else broker_epoch,
        }

    def lead(
        self,
        topic="orders",
        partition=0,
        leader=ME,
        leader_epoch=1,
        topic_id=ORDERS,
        is_new=True,
        controller_epoch=NEWER,
        broker_epoch=None,
        **fields,
    ):
        """Returns the top-level error and that of the partition."""
        r = m.LeaderAndIsrRequest
        state = r.LeaderAndIsrPartitionState(
            partition_index=partition,
            controller_epoch=controller_epoch,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=[leader],
            replicas=[ME, 1],
            is_new=is_new,
        )
        topic_state = r.LeaderAndIsrTopicState(
            topic_name=topic, topic_id=topic_id, partition_states=[state]
        )
        request = r(
            topic_states=[topic_state], **self._epochs(controller_epoch, broker_epoch), **fields
        )
        answer = self.client.ask(ApiKey.LEADER_AND_ISR, 7, request)
        (answered,) = answer.topics
        assert answered.topic_id == topic_id
        ((error,),) = ([each.error_code for each in answered.partition_errors],)
        return answer.error_code, error

    def stop(
        self,
        topic="orders",
        leader_epoch=1,
        delete=False,
        controller_epoch=NEWER,
        broker_epoch=None,
    ):
        r = m.StopReplicaRequest
        partition = r.StopReplicaPartitionState(
            partition_index=0, leader_epoch=leader_epoch, delete_partition=delete
        )
        topics = [r.StopReplicaTopicState(topic_name=topic, partition_states=[partition])]
        request = r(topic_states=topics, **self._epochs(controller_epoch, broker_epoch))
        answer = self.client.ask(ApiKey.STOP_REPLICA, 4, request)
        return answer.error_code, [each.error_code for each in answer.partition_errors]

    def update(self, *topics, controller_epoch=NEWER, broker_epoch=None):
        endpoint = m.UpdateMetadataRequest.UpdateMetadataEndpoint(
            host="localhost", port=1, listener="PLAINTEXT"
        )
        broker = m.UpdateMetadataRequest.UpdateMetadataBroker(id=9, endpoints=[endpoint])
        request = m.UpdateMetadataRequest(
            live_brokers=[broker],
            topic_states=list(topics),
            **self._epochs(controller_epoch, broker_epoch),
        )
        return self.client.ask(ApiKey.UPDATE_METADATA, 8, request).error_code


@pytest.fixture
def controller(cluster):
    with RawClient(cluster.bootstrap_servers) as client:
        yield Controller(cluster, client)


# --- epochs, as Apache Kafka 3.9 answers


def test_requests_of_an_older_controller_are_refused(controller):
    assert controller.update() == ErrorCode.NONE
    stale = ErrorCode.STALE_CONTROLLER_EPOCH
    assert controller.lead(controller_epoch=OLDER) == (stale, stale)
    assert controller.update(controller_epoch=OLDER) == stale
    assert controller.stop(controller_epoch=OLDER) == (stale, [])


def test_requests_for_an_earlier_registration_are_refused(controller):
    stale, epoch = ErrorCode.STALE_BROKER_EPOCH, controller.broker_epoch - 1
    assert controller.lead(broker_epoch=epoch) == (stale, stale)
    assert controller.lead(broker_epoch=epoch, controller_epoch=OLDER) == (stale, stale)
    assert controller.update(broker_epoch=epoch) == stale
    assert controller.stop(broker_epoch=epoch) == (stale, [])


@pytest.mark.parametrize("broker_epoch", [-1, 2**40])
def test_unknown_and_higher_broker_epochs_are_accepted(controller, broker_epoch):
    topic = f"epoch-{broker_epoch}"
    topic_id = topic.encode().ljust(16)[:16]
    lead = controller.lead(topic, topic_id=topic_id, broker_epoch=broker_epoch)
    assert lead == (ErrorCode.NONE, ErrorCode.NONE)


def test_a_kraft_controller_is_refused(controller):
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assert controller.lead(is_k_raft_controller=True) == (unknown, unknown)


def test_only_a_higher_leader_epoch_changes_a_role(controller):
    lead, replicas = controller.lead, controller.services.replicas
    assert lead("roles", leader_epoch=5, topic_id=b"r" * 16) == (0, 0)
    assert replicas.get("roles", 0).leadership is not None
    for leader_epoch in (5, 4):
        answer = lead("roles", leader=1, leader_epoch=leader_epoch, topic_id=b"r" * 16)
        assert answer == (0, ErrorCode.STALE_CONTROLLER_EPOCH)
    assert replicas.get("roles", 0).leadership is not None
    assert lead("roles", leader=1, leader_epoch=6, topic_id=b"r" * 16) == (0, 0)
    assert replicas.get("roles", 0).leadership is None


def test_another_topic_id_is_refused(controller):
    assert controller.lead("ids", topic_id=ORDERS) == (0, 0)
    answer = controller.lead("ids", topic_id=OTHER, leader_epoch=2)
    assert answer == (0, ErrorCode.INCONSISTENT_TOPIC_ID)


def test_a_failed_disk_is_reported_before_any_other_error(controller, monkeypatch):
    assert controller.lead("failed", topic_id=ORDERS) == (0, 0)
    log = controller.services.replicas.get("failed", 0).log
    monkeypatch.setattr(log.directory, "offline", "Input/output error")
    for changes in ({}, {"topic_id": OTHER}, {"leader_epoch": 2}):
        answer = controller.lead("failed", **{"topic_id": ORDERS} | changes)
        assert answer == (0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert controller.stop("failed", leader_epoch=0) == (0, [ErrorCode.KAFKA_STORAGE_ERROR])


def test_a_partition_that_is_not_new_is_not_led_without_its_log(controller, cluster):
    answer = controller.lead("lost", topic_id=b"l" * 16, is_new=False)
    assert answer == (0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert controller.services.replicas.get("lost", 0) is None


def test_a_replica_is_stopped_and_deleted_as_the_controller_says(controller):
    assert controller.stop("unknown") == (0, [0])
    assert controller.lead("stopped", topic_id=b"s" * 16, leader_epoch=3) == (0, 0)
    log = controller.services.replicas.get("stopped", 0).log
    assert controller.stop("stopped", leader_epoch=2) == (0, [ErrorCode.FENCED_LEADER_EPOCH])
    assert controller.stop("stopped", leader_epoch=3) == (0, [0])
    assert log.path.exists()
    assert controller.stop("stopped", leader_epoch=EPOCH_DURING_DELETE, delete=True) == (0, [0])
    assert controller.services.replicas.get("stopped", 0) is None
    assert log.path.name.endswith("-delete")


def test_a_new_topic_has_its_settings_from_the_first_record_on(controller, cluster):
    async def store():
        await controller.services.member.registry.configs.store(
            "topics", "shaped", {"segment.bytes": "1048577"}
        )

    cluster.run(store())
    assert controller.lead("shaped", topic_id=b"h" * 16) == (0, 0)
    log = controller.services.replicas.get("shaped", 0).log
    assert log.config.segment_bytes == 1048577


def test_metadata_follows_the_controller(controller):
    r = m.UpdateMetadataRequest
    partition = r.UpdateMetadataPartitionState(leader=9, isr=[9], replicas=[9], zk_version=4)
    topic = r.UpdateMetadataTopicState(
        topic_name="told", topic_id=b"t" * 16, partition_states=[partition]
    )
    assert controller.update(topic) == ErrorCode.NONE
    metadata = controller.services.metadata
    assert metadata.controller_id == 9 and list(metadata.brokers) == [9]
    assert metadata.partition("told", 0).partition_epoch == 4
    partition.leader = -2
    assert controller.update(topic) == ErrorCode.NONE
    assert "told" not in controller.services.metadata.topics
