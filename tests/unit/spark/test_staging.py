"""The size of the messages that tasks send to the driver."""

import pytest

from headrace.spark.options import parse_sink
from headrace.spark.staging import message_size_max

OPTIONS = parse_sink({"kafka.bootstrap.servers": "127.0.0.1:9092", "delivery": "exactly-once"})


@pytest.mark.parametrize("task_count", [1, 4, 40, 1_000, 100_000])
def test_the_messages_of_a_batch_are_bounded_for_any_number_of_tasks(task_count):
    sizes = [message_size_max(OPTIONS, task) for task in range(task_count)]

    assert max(sizes) == OPTIONS.message_size_max == 32 << 20
    assert sum(sizes) < 8 * OPTIONS.message_size_max
    assert sizes == sorted(sizes, reverse=True)


def test_the_first_tasks_may_fill_a_message():
    assert {message_size_max(OPTIONS, task) for task in range(4)} == {OPTIONS.message_size_max}
