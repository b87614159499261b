"""The controller replays accepted changes and nothing else."""

import pytest

from headrace.core import elections, topic_changes
from headrace.core.topics import NewTopic
from headrace.model.errors import Fenced
from headrace.model.ids import BrokerId
from tests.fakes.controllers import a_controller, a_state, a_topic, entries, made


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
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    change = elections.decide_isr(controller, a_state(isr=(1, 2)), BrokerId(1))
    controller.replay([change])
    with pytest.raises(Fenced):
        controller.replay([change])
