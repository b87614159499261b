"""Controllers with a handful of brokers and topics, for tests of decisions."""

from headrace.core import topic_changes
from headrace.core.controller import Controller, CreateTopic
from headrace.core.topic_changes import PlacementSeed
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import BrokerEntry, ClusterMetadata, PartitionState, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicId

ID = TopicId(b"i" * 16)


def a_broker(number: int, broker_epoch: int = 1) -> BrokerEntry:
    return BrokerEntry(BrokerId(number), {}, None, broker_epoch)


def entries(*numbers: int) -> dict[BrokerId, BrokerEntry]:
    return {BrokerId(number): a_broker(number) for number in numbers}


def a_controller(*numbers: int, topics: tuple[TopicState, ...] = ()) -> Controller:
    metadata = ClusterMetadata(
        "c", BrokerId(1), entries(*(numbers or (1,))), {topic.name: topic for topic in topics}
    )
    return Controller(ControllerEpoch(3), metadata)


def a_state(replicas=(1, 2, 3), isr=None, leader=1, leader_epoch=4, partition_epoch=6, **more):
    return PartitionState(
        topic=more.pop("topic", "t"),
        partition=more.pop("partition", 0),
        topic_id=ID,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        isr=tuple(replicas if isr is None else isr),
        replicas=tuple(replicas),
        partition_epoch=partition_epoch,
    )


def a_topic(*states: PartitionState) -> TopicState:
    return TopicState("t", ID, states or (a_state(),), internal=False)


def create(controller: Controller, *requests: NewTopic, check=lambda overrides: None):
    numbers = iter(range(1000))
    return topic_changes.decide_creates(
        controller,
        requests,
        lambda: (TopicId(next(numbers).to_bytes(16)), PlacementSeed(0, 0)),
        default_partition_count=2,
        default_replication_factor=1,
        check_settings=check,
    )


def made(controller: Controller, *requests: NewTopic) -> None:
    changes = create(controller, *requests)
    assert all(isinstance(change, CreateTopic) for change in changes)
    controller.replay(changes)


def code_of(answer: object) -> ErrorCode:
    assert isinstance(answer, Rejected), answer
    return answer.code
