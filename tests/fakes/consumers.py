"""Consumers of the new protocol around a group shard: their heartbeats, and well-behaved clients.

``Consumers`` adds the requests of KIP-848 to the runtime of ``fakes.groups``. A ``Client`` handles
responses like a real one: it revokes partitions, confirms that, and then takes the new ones.
"""

from headrace.core.groups.consumer.describe import describe
from headrace.core.groups.consumer.heartbeat import heartbeat
from headrace.core.outcome import RequestContext
from headrace.wire import messages as m
from tests.fakes.groups import Groups, a_topic

REBALANCE_TIMEOUT_MS = 60_000
CONSUMER_SESSION_MS = 45_000  # the broker's default


class Consumers(Groups):
    def __init__(self, **settings):
        """Targets are computed at once, unless a test says otherwise."""
        super().__init__(**{"group_consumer_assignment_interval_ms": 0, **settings})

    def beat(
        self,
        member_id,
        member_epoch,
        *,
        group="g",
        topics=None,
        pattern=None,
        owned=None,
        instance=None,
        rebalance_ms=-1,
        assignor=None,
        rack=None,
        draws_own_id=True,
        client_id="client",
    ):
        """``owned`` by topic name."""
        wanted = m.ConsumerGroupHeartbeatRequest
        request = wanted(
            group_id=group,
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=pattern,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                wanted.TopicPartitions(topic_id=self.topic_id(name), partitions=list(partitions))
                for name, partitions in owned.items()
            ],
        )
        self._drawn += 1
        context = RequestContext(client_id, "/10.0.0.1")
        drawn_id = None if draws_own_id else f"#{self._drawn}"
        return self.ask(
            lambda ticket: heartbeat(self.shard, ticket, context, request, drawn_id, self.now)
        )

    def commit(self, *arguments, supports_member_epoch=True, **more):
        return super().commit(*arguments, supports_member_epoch=supports_member_epoch, **more)

    def enter(self, member_id, topics=("orders",), **how):
        """The first heartbeat of a member."""
        how = {"owned": {}, "rebalance_ms": REBALANCE_TIMEOUT_MS, "topics": topics, **how}
        return self.beat(member_id, 0, **how)

    def look(self, group="g"):
        return self.ask(
            lambda ticket: describe(self.shard, ticket, group, self.now),
        )

    # surroundings

    def topic_id(self, name):
        return self.cluster.metadata.topics[name].topic_id

    def topic_name(self, topic_id):
        state = self.cluster.metadata.topic_by_id(topic_id)
        return state.name if state is not None else topic_id

    def make_topics(self, **partition_counts):
        self.cluster.metadata = self.cluster.metadata.with_topics(
            [a_topic(name, count) for name, count in partition_counts.items()]
        )

    def drop_topic(self, name):
        self.cluster.metadata = self.cluster.metadata.with_topics((), [name])

    def assignment_in(self, answer):
        """The assignment in a response, by topic name; None if it has none."""
        if answer.assignment is None:
            return None
        return {
            self.topic_name(topic.topic_id): set(topic.partitions)
            for topic in answer.assignment.topic_partitions
        }

    def has(self, member_id):
        """The partitions that a member owns in the group's state, without those to revoke."""
        return {
            self.topic_name(topic_id): set(partitions)
            for topic_id, partitions in self.group.members[member_id].assigned.items()
        }

    def settle_all(self, *clients, rounds=20):
        """Let clients send heartbeats until nothing changes."""
        for _ in range(rounds):
            moved = [client for client in clients if client.beat_and_obey()]
            if not moved:
                return
        raise AssertionError("the group does not settle")


class Client:
    """One well-behaved member."""

    def __init__(self, consumers, member_id, topics=("orders",), group="g", **how):
        self.consumers = consumers
        self.member_id = member_id
        self.group = group
        self.how = how
        self.topics = topics
        self.member_epoch = 0
        self.owned = {}  # by topic name
        self.wanted = {}
        self._said = None

    def join(self):
        answer = self.consumers.enter(
            self.member_id, topics=self.topics, group=self.group, **self.how
        )
        assert not answer.error_code, answer
        self.member_id = answer.member_id
        self._hear(answer)
        self.obey()
        return self

    def beat(self, **more):
        """One heartbeat; it reports what it owns only if that has changed."""
        said = {name: sorted(partitions) for name, partitions in self.owned.items() if partitions}
        owned = said if said != self._said else None
        answer = self.consumers.beat(
            self.member_id,
            self.member_epoch,
            group=self.group,
            owned=owned,
            instance=self.how.get("instance"),
            **more,
        )
        if not answer.error_code:
            self._said = said
            self._hear(answer)
        return answer

    def _hear(self, answer):
        self.member_epoch = answer.member_epoch
        assignment = self.consumers.assignment_in(answer)
        if assignment is not None:
            self.wanted = assignment

    def obey(self):
        """Revoke and take partitions; returns whether anything changed."""
        had, self.owned = self.owned, {name: set(found) for name, found in self.wanted.items()}
        return had != self.owned

    def beat_and_obey(self):
        before = self.member_epoch
        answer = self.beat()
        assert not answer.error_code, answer
        return self.obey() or self.member_epoch != before

    def leave(self, member_epoch=-1):
        return self.consumers.beat(
            self.member_id, member_epoch, group=self.group, instance=self.how.get("instance")
        )
