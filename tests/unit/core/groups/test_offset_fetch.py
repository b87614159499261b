"""OffsetFetch: committed offsets as clients read them."""

import pytest

from headrace.core.groups.offset_fetch import fetch
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.groups import Groups, a_topic

OK = ErrorCode.NONE


def test_offsets_of_an_unknown_group_are_minus_one_without_an_error():
    groups = Groups()
    answer = groups.fetch([0, 77], group="none")
    assert answer.error_code == OK
    assert [(x.committed_offset, x.error_code) for x in answer.topics[0].partitions] == [
        (-1, OK),
        (-1, OK),
    ]
    assert groups.fetch(group="none").topics == []


def test_offsets_survive_a_restart():
    groups = Groups()
    groups.commit({0: 5, 1: 6}, metadata="m")
    groups.commit({0: 7})
    groups.commit({1: 1}, topic="other", group="h")
    groups.reload()
    assert groups.offsets() == {0: 7, 1: 6}
    assert groups.offsets("h", "other") == {1: 1}
    assert groups.fetch([1]).topics[0].partitions[0].metadata == "m"


def test_offsets_of_a_re_created_topic_are_not_those_of_the_old_one():
    groups = Groups()
    groups.commit({0: 5})
    groups.cluster.metadata = groups.cluster.metadata.with_topics(
        [a_topic("orders", 4, fill="new")]
    )
    assert groups.fetch([0]).topics[0].partitions[0].committed_offset == -1
    groups.commit({0: 0})
    assert groups.fetch([0]).topics[0].partitions[0].committed_offset == 0


def test_offsets_of_a_deleted_topic_are_listed_by_name_but_not_by_id():
    groups = Groups()
    groups.commit({0: 5})
    groups.cluster.metadata = groups.cluster.metadata.with_topics([], ["orders"])
    assert groups.offsets() == {0: 5}
    request = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = groups.ask(
        lambda ticket: fetch(groups.shard, ticket, request, require_stable=False, by_topic_id=True)
    )
    assert answer.topics == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_fetch_of_stable_offsets_must_wait_for_the_transaction(committed):
    groups = Groups()
    groups.commit({0: 1, 1: 2})
    groups.txn_commit({0: 5})
    (topic,) = groups.fetch([0, 1], require_stable=True).topics
    assert [(x.committed_offset, x.error_code) for x in topic.partitions] == [
        (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (2, OK),
    ]
    (everything,) = groups.fetch(require_stable=True).topics
    assert everything.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert groups.fetch([0]).topics[0].partitions[0].committed_offset == 1
    groups.end_transaction(7, committed=committed)
    (topic,) = groups.fetch([0], require_stable=True).topics
    assert topic.partitions[0].committed_offset == (5 if committed else 1)
