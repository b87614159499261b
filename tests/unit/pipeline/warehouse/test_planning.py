"""Batches and tasks: every offset once, in order, within the limits."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import TopicPartition
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.planning import Limits, is_due, next_batch, plan_tasks

spans = st.lists(st.integers(1, 500), max_size=8).map(
    lambda sizes: [
        Span(TopicPartition("orders", n), bytes(16), 100 * n, 100 * n + size)
        for n, size in enumerate(sizes)
    ]
)
sizes = st.integers(1, 300)
limits = st.builds(
    lambda batch, low, more: Limits(batch, 60.0, low, low + more), sizes, sizes, sizes
)
record_sizes = st.floats(0.5, 50)


def offsets_of(pieces):
    found = {}
    for piece in pieces:
        found.setdefault(piece.place, []).extend(range(piece.first_offset, piece.offset_end))
    return found


@given(spans, st.integers(1, 8), record_sizes, limits)
def test_tasks_hold_every_offset_once_and_in_order(batch, count, bytes_per_record, limits):
    tasks = plan_tasks(batch, count, bytes_per_record, limits)
    assert offsets_of(piece for task in tasks for piece in task) == offsets_of(batch)
    assert all(piece.size > 0 for task in tasks for piece in task)


@given(spans, st.integers(1, 8), record_sizes, limits)
def test_tasks_are_within_their_limits(batch, count, bytes_per_record, limits):
    tasks = plan_tasks(batch, count, bytes_per_record, limits)
    size_min = max(1, int(limits.task_bytes_min / bytes_per_record))
    size_max = max(size_min, int(limits.task_bytes_max / bytes_per_record))
    task_sizes = [sum(piece.size for piece in task) for task in tasks]
    assert all(size <= size_max for size in task_sizes)
    # Two neighbors that fit into one task would have been joined.
    share = min(size_max, max(size_min, -(-sum(s.size for s in batch) // count)))
    for task, after in zip(tasks, tasks[1:], strict=False):
        assert sum(piece.size for piece in task) + after[0].size > share


def test_a_large_partition_is_split_and_tiny_ones_are_joined():
    large = Span(TopicPartition("large", 0), bytes(16), 0, 1_000)
    tiny = [Span(TopicPartition("tiny", n), bytes(16), 0, 10) for n in range(20)]
    tasks = plan_tasks([large, *tiny], 4, 1.0, Limits(task_bytes_min=1, task_bytes_max=1_000))
    assert len(tasks) <= 6
    assert sum(1 for task in tasks if task[0].place.topic == "large") >= 3
    assert all(len(task) > 1 for task in tasks if task[0].place.topic == "tiny")


@given(spans, record_sizes, limits)
def test_a_batch_begins_where_its_partitions_do_and_starves_none(pending, bytes_per_record, limits):
    batch = next_batch(pending, bytes_per_record, limits)
    assert [span.place for span in batch] == [span.place for span in pending]
    for part, whole in zip(batch, pending, strict=True):
        assert part.first_offset == whole.first_offset
        assert whole.first_offset < part.offset_end <= whole.offset_end
    size = sum(span.size for span in batch)
    assert size <= max(1, limits.batch_bytes / bytes_per_record) + len(batch)


def test_a_batch_is_due_by_size_or_by_age_and_never_when_empty():
    limits = Limits(batch_bytes=1_000, batch_age_s=60)
    few = [Span(TopicPartition("orders", 0), bytes(16), 0, 9)]
    many = [Span(TopicPartition("orders", 0), bytes(16), 0, 10)]
    assert not is_due(few, 59.9, 100, limits)
    assert is_due(few, 60.0, 100, limits)  # also when the topic is quiet since then
    assert is_due(many, 0.0, 100, limits)
    assert not is_due([], 1e9, 100, limits)
