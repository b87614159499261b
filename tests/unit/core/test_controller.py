"""The controller replays accepted changes and nothing else."""

import pytest

from headrace.core import elections, topic_changes
from headrace.core.topics import NewTopic
from headrace.model.errors import Fenced
from headrace.model.ids import BrokerId, TopicPartition
from tests.fakes.controllers import a_broker, a_controller, a_state, a_topic, entries, made


def test_every_change_gives_the_metadata_a_new_generation():
    controller = a_controller()
    generations = [controller.metadata.generation]
    made(controller, NewTopic("a"))
    generations.append(controller.metadata.generation)
    controller.replay([topic_changes.decide_add_partitions(controller, "a", 5, None)])
    generations.append(controller.metadata.generation)
    controller.replay([topic_changes.decide_mark_for_deletion(controller, "a")])
    generations.append(controller.metadata.generation)
    assert generations == sorted(set(generations))


def test_replicas_on_dead_brokers_are_offline():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    controller.brokers_changed(entries(1).values(), BrokerId(1))
    assert controller.metadata.topics["t"].partitions[0].offline == (2, 3)
    controller.brokers_changed(entries(1, 2, 3).values(), BrokerId(1))
    assert controller.metadata.topics["t"].partitions[0].offline == ()


def test_a_change_with_an_outdated_partition_epoch_is_fenced():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(leader=2)),))
    change = elections.decide_election(controller, TopicPartition("t", 0), unclean=False)
    controller.replay([change])
    with pytest.raises(Fenced):
        controller.replay([change])


def test_a_broker_that_shuts_down_is_offline_for_its_replicas_until_it_returns():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    controller.shuts_down(BrokerId(2))
    assert controller.metadata.topics["t"].partitions[0].offline == (2,)
    assert BrokerId(2) in controller.metadata.brokers
    again = {**entries(1, 3), BrokerId(2): a_broker(2, broker_epoch=9)}
    assert controller.brokers_changed(again.values(), BrokerId(1)) == {2}
    assert controller.metadata.topics["t"].partitions[0].offline == ()


def test_a_failed_replica_can_serve_again_after_its_broker_registered_again():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    controller.replicas_failed([TopicPartition("t", 0)], BrokerId(2))
    assert controller.metadata.topics["t"].partitions[0].offline == (2,)
    again = {**entries(1, 3), BrokerId(2): a_broker(2, broker_epoch=9)}
    controller.brokers_changed(again.values(), BrokerId(1))
    assert controller.metadata.topics["t"].partitions[0].offline == ()


def test_topics_that_another_broker_wrote_are_known_with_their_offline_replicas():
    controller = a_controller(1, 2)
    controller.found([a_topic()])
    assert controller.metadata.topics["t"].partitions[0].offline == (3,)
    assert controller.names_by_collision_key["t"] == "t"
