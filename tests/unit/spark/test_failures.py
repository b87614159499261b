"""What a query's user reads after a broker said no."""

import pickle

import pytest

from headrace.client.errors import Refused
from headrace.model.errors import ErrorCode
from headrace.spark.failures import refuse, refused


@pytest.mark.parametrize(
    ("code", "what", "advice"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic 'orders'", "WRITE for writing"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fetching orders-3", "subscribe, assign, topic"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "group 'g'", "kafka.group.id"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id 'headrace-q'",
         "the transactional ids headrace-*"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "getting a producer id",
         "kafka.enable.idempotence"),
    ],
)  # fmt: skip
def test_a_missing_permission_is_told_with_what_was_wanted_and_what_to_change(code, what, advice):
    with pytest.raises(Refused) as raised:
        refuse(code, what)

    assert str(raised.value).startswith(f"{what}: {code.name} (")
    assert advice in str(raised.value)
    assert not raised.value.retriable
    # Spark pickles what a task raised and shows its text.
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_other_refusals_are_told_without_advice():
    assert (
        str(refused(ErrorCode.CORRUPT_MESSAGE, "fetching t-0")) == "fetching t-0: CORRUPT_MESSAGE"
    )
