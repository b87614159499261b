"""Consumers of the classic protocol that share a group with members of the new one."""

from headrace.wire import messages as m
from headrace.wire.framing import decode_versioned, encode_versioned
from tests.fakes.consumers import Client, Consumers
from tests.fakes.groups import subscription

ALL = {"orders": {0, 1, 2, 3}}


def cooperative(*topics, owned=None):
    """A subscription that reports what its member owns (version 1)."""
    owned_partitions = [
        m.ConsumerProtocolSubscription.TopicPartition(topic=name, partitions=sorted(partitions))
        for name, partitions in (owned or {}).items()
    ]
    message = m.ConsumerProtocolSubscription(topics=list(topics), owned_partitions=owned_partitions)
    return encode_versioned(message, 1)


COOPERATIVE = (("cooperative-sticky", cooperative("orders")),)
EAGER = (("range", subscription("orders")),)


def embedded(partitions, user_data=None):
    named = [
        m.ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=sorted(found))
        for name, found in partitions.items()
    ]
    message = m.ConsumerProtocolAssignment(assigned_partitions=named, user_data=user_data)
    return encode_versioned(message, 0)


def opened(raw):
    """The assignment in a classic answer, by topic name."""
    found = decode_versioned(m.ConsumerProtocolAssignment, raw)
    return {topic.topic: set(topic.partitions) for topic in found.assigned_partitions}


def a_classic_group(groups, assignments=(ALL,), **how):
    """Members with these assignments; their ids."""
    how = {"protocols": COOPERATIVE, **how}
    tickets = [groups.join(**how) for _ in assignments]
    groups.pass_time(0)
    answers = [groups.answer(ticket) for ticket in tickets]
    generation = answers[0].generation_id
    for answer in reversed(answers):
        groups.sync(
            answer.member_id,
            generation,
            {
                other.member_id: embedded(partitions)
                for other, partitions in zip(answers, assignments, strict=True)
            }
            if answer.member_id == answer.leader
            else (),
        )
    assert groups.group.state_name == "Stable"
    return [answer.member_id for answer in answers]


class ClassicClient:
    """A classic consumer of the cooperative kind, in a group of any kind."""

    def __init__(self, groups, member_id, generation=-1, owned=None, topics=("orders",)):
        self.groups = groups
        self.member_id = member_id
        self.generation = generation
        self.owned = owned or {}
        self.topics = topics

    def join(self, **how):
        protocols = (("cooperative-sticky", cooperative(*self.topics, owned=self.owned)),)
        answer = self.groups.join(self.member_id, protocols=protocols, **how)
        answer = self.groups.answer(answer)
        assert not answer.error_code, answer
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return self

    def sync(self):
        answer = self.groups.answer(self.groups.sync(self.member_id, self.generation))
        if not answer.error_code:
            self.owned = opened(answer.assignment)
        return answer

    def heartbeat(self):
        return self.groups.heartbeat(self.member_id, self.generation).error_code

    def beat_and_obey(self):
        """Returns whether anything changed."""
        if not self.heartbeat():
            return False
        self.join()
        assert not self.sync().error_code
        return True


def a_mixed_group(**settings):
    groups = Consumers(**settings)
    (old_id,) = a_classic_group(groups)
    new = Client(groups, "a").join()
    old = ClassicClient(groups, old_id, 1, ALL)
    groups.settle_all(old, new)
    assert len(old.owned["orders"]) == len(new.owned["orders"]) == 2
    return groups, old, new
