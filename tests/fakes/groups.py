"""A runtime for the group shard that does everything at once: append, replay, reply.

Its log is a list, and tests move its clock. ``reload`` drops the shard and replays the log into a
new one, as a restart does.
"""

from headrace.core.groups import offset_commit, offset_deletion, offset_fetch
from headrace.core.groups.group import CommitOptions, JoinOptions
from headrace.core.groups.shard import GroupShard
from headrace.core.outcome import Outcome, RequestContext, Ticket
from headrace.model.cluster_metadata import ClusterMetadata, PartitionState, TopicState
from headrace.model.config import BrokerConfig
from headrace.model.ids import BrokerId, LeaderEpoch, Millis, TopicId
from headrace.wire import messages as m
from headrace.wire.schema import encoder

START = Millis(1_700_000_000_000)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def a_topic(name, partition_count, fill=None):
    topic_id = TopicId((fill or name).encode().ljust(16, b".")[:16])
    me = (BrokerId(1),)
    return TopicState(
        name,
        topic_id,
        tuple(
            PartitionState(name, number, topic_id, me[0], LeaderEpoch(0), me, me, 0)
            for number in range(partition_count)
        ),
        False,
    )


def subscription(*topics):
    """The subscription of a consumer: version 0, topics, no user data."""
    raw = b"\0\0" + len(topics).to_bytes(4)
    for topic in topics:
        raw += len(topic).to_bytes(2) + topic.encode()
    return raw + b"\xff\xff\xff\xff"


RANGE = ("range", subscription("orders"))
STICKY = ("sticky", subscription("orders"))
ROUND_ROBIN = ("roundrobin", subscription("orders"))


class Cluster:
    def __init__(self, **settings):
        given = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.config = BrokerConfig.parse({"group.initial.rebalance.delay.ms": "0", **given})
        self.metadata = ClusterMetadata("cluster").with_topics(
            [a_topic("orders", 4), a_topic("other", 2)]
        )
        self.settings_of_groups = {}

    def group_settings(self, group_id):
        return self.settings_of_groups.get(group_id, {})


class Groups:
    """One shard, its log, and its parked requests."""

    def __init__(self, **settings):
        self.cluster = Cluster(**settings)
        self.now = START
        self.log = []  # (key, value, producer id) or (producer id, committed) for a marker
        self.answers = {}
        self.is_writable = True
        self._ticket = 0
        self._drawn = 0
        self.shard = GroupShard(self.cluster)
        self.shard.loaded(self.now)

    # the runtime

    def run(self, outcome: Outcome) -> None:
        if outcome.records and not self.is_writable:
            return
        for record in outcome.records:
            producer_id, producer_epoch = outcome.producer or (-1, -1)
            self.log.append((*record, producer_id))
            self.shard.replay(*record, len(self.log) - 1, producer_id, producer_epoch)
        for ticket, response in outcome.replies:
            assert ticket not in self.answers, "a ticket is answered once"
            self.answers[ticket] = response

    def ask(self, decide):
        """The answer, or the ticket of a parked request."""
        self._ticket += 1
        ticket = Ticket(self._ticket)
        self.run(decide(ticket))
        return self.answers.get(ticket, ticket)

    def answer(self, asked):
        """What ``ask`` returned, or the answer to its ticket."""
        return self.answers[asked] if isinstance(asked, int) else asked

    def waits(self, asked):
        return isinstance(asked, int) and asked not in self.answers

    def reload(self):
        self.shard = GroupShard(self.cluster)
        for offset, entry in enumerate(self.log):
            if len(entry) == 2:
                self.shard.replay_marker(entry[0], 0, entry[1], offset)
            else:
                self.shard.replay(entry[0], entry[1], offset, entry[2], 0)
        self.run(self.shard.loaded(self.now))

    def end_transaction(self, producer_id, *, committed):
        self.log.append((producer_id, committed))
        self.shard.replay_marker(producer_id, 0, committed, len(self.log) - 1)

    def pass_time(self, ms):
        """Move the clock; deadlines on the way expire at their own time."""
        until = self.now + ms
        while (deadline := self.shard.next_deadline()) is not None and deadline <= until:
            self.now = Millis(max(self.now, int(deadline)))
            self.run(self.shard.tick(self.now))
        self.now = Millis(until)

    # requests

    def join(
        self,
        member_id="",
        group="g",
        requires_known_member=False,
        supports_skip_assignment=False,
        instance=None,
        protocols=(RANGE,),
        protocol_type="consumer",
        session_ms=SESSION_MS,
        rebalance_ms=REBALANCE_MS,
        client_id="client",
    ):
        request = m.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ],
        )
        self._drawn += 1
        context = RequestContext(client_id, "/10.0.0.1")
        options = JoinOptions(requires_known_member, supports_skip_assignment)
        return self.ask(
            lambda ticket: self.shard.join(
                ticket, context, request, options, f"#{self._drawn}", self.now
            )
        )

    def sync(
        self,
        member_id,
        generation,
        assignments=(),
        group="g",
        instance=None,
        protocol_type=None,
        protocol_name=None,
    ):
        request = m.SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=raw)
                for name, raw in dict(assignments).items()
            ],
        )
        return self.ask(
            lambda ticket: self.shard.sync(ticket, request, self.now),
        )

    def heartbeat(self, member_id, generation, group="g", instance=None):
        request = m.HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return self.ask(lambda ticket: self.shard.heartbeat(ticket, request, self.now))

    def leave(self, *members, group="g"):
        """Each member is an id, or a pair of id and instance id."""
        identities = [
            m.LeaveGroupRequest.MemberIdentity(
                member_id=member if isinstance(member, str) else member[0],
                group_instance_id=None if isinstance(member, str) else member[1],
            )
            for member in members
        ]
        request = m.LeaveGroupRequest(group_id=group, members=identities)
        return self.ask(lambda ticket: self.shard.leave(ticket, request, self.now))

    def commit(
        self,
        offsets,
        member_id="",
        generation=-1,
        group="g",
        topic="orders",
        metadata="",
        supports_member_epoch=False,
        instance=None,
        retention_ms=-1,
        topic_id=None,
    ):
        """``offsets`` by partition; returns the codes by partition."""
        options = CommitOptions(
            topic_id is not None, supports_member_epoch, encoder(m.OffsetCommitResponse, 9)
        )
        wanted = m.OffsetCommitRequest
        request = wanted(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                wanted.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id or bytes(16),
                    partitions=[
                        wanted.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        answer = self.ask(
            lambda ticket: offset_commit.commit(self.shard, ticket, request, options, self.now)
        )
        return codes(answer)

    def txn_commit(self, offsets, producer_id=7, member_id="", generation=-1, group="g"):
        wanted = m.TxnOffsetCommitRequest
        request = wanted(
            transactional_id="t",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            topics=[
                wanted.TxnOffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        wanted.TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        answer = self.ask(
            lambda ticket: offset_commit.txn_commit(self.shard, ticket, request, self.now)
        )
        return codes(answer)

    def fetch(
        self, partitions=None, group="g", topic="orders", require_stable=False, topic_id=None
    ):
        """The answer for one group; ``partitions`` None requests all offsets."""
        wanted = m.OffsetFetchRequest
        request = wanted.OffsetFetchRequestGroup(group_id=group, topics=None)
        if partitions is not None:
            request.topics = [
                wanted.OffsetFetchRequestTopics(
                    name=topic, topic_id=topic_id or bytes(16), partition_indexes=list(partitions)
                )
            ]
        return self.ask(
            lambda ticket: offset_fetch.fetch(
                self.shard,
                ticket,
                request,
                require_stable=require_stable,
                by_topic_id=topic_id is not None,
            )
        )

    def offsets(self, group="g", topic="orders"):
        """The committed offsets by partition."""
        return {
            partition.partition_index: partition.committed_offset
            for found in self.fetch(group=group).topics
            if found.name == topic
            for partition in found.partitions
        }

    def delete_offsets(self, *partitions, topic="orders", group="g"):
        wanted = m.OffsetDeleteRequest
        request = wanted(
            group_id=group,
            topics=[
                wanted.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        wanted.OffsetDeleteRequestPartition(partition_index=partition)
                        for partition in partitions
                    ],
                )
            ],
        )
        return self.ask(
            lambda ticket: offset_deletion.delete(self.shard, ticket, request, self.now)
        )

    def delete(self, group="g"):
        return self.ask(lambda ticket: self.shard.delete_group(ticket, group, self.now)).error_code

    def describe(self, group="g"):
        return self.ask(lambda ticket: self.shard.describe(ticket, group, self.now))

    def list(self, states=(), kinds=()):
        return self.ask(
            lambda ticket: self.shard.list_groups(
                ticket, frozenset(states), frozenset(kinds), self.now
            )
        ).groups

    # groups in a certain state

    def stable(self, count=1, group="g", **how):
        """Bring ``count`` members to a stable group; their ids, and the generation."""
        tickets = []
        for _ in range(count):
            tickets.append(self.join(group=group, **how))
        self.pass_time(0)
        return self.settle(tickets, group)

    def stable_static_pair(self):
        """Two static members, ``one`` (the leader) and ``two``; their ids, and the generation."""
        tickets = [self.join(instance=name) for name in ("one", "two")]
        self.pass_time(0)
        return self.settle(tickets)

    def settle(self, tickets, group="g"):
        """Sync all members of these joins, the leader last."""
        answers = [self.answer(ticket) for ticket in tickets]
        generation = answers[0].generation_id
        leader = answers[0].leader
        assignments = {answer.member_id: answer.member_id.encode() for answer in answers}
        for answer in answers:
            if answer.member_id != leader:
                self.sync(answer.member_id, generation, group=group)
        self.sync(leader, generation, assignments, group=group)
        return [answer.member_id for answer in answers], generation

    @property
    def group(self):
        return self.shard.groups["g"]


def codes(answer):
    return {
        partition.partition_index: partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }
