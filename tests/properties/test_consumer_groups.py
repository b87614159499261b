"""Consumer groups driven at random: members of both protocols, topics, time, restarts.

After every step each partition has at most one owner, in the group's state and in what the members
believe; the state is what the log says, compacted or not. In the end, when all members keep sending
heartbeats, the group settles and every partition has an owner.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.core.groups.classic.group import ClassicGroup
from headrace.core.groups.consumer.group import ConsumerGroup
from headrace.core.groups.consumer.state import topics_hash
from headrace.core.groups.shard import GroupShard
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.framing import decode_versioned, encode_versioned
from tests.fakes.consumers import CONSUMER_SESSION_MS, Consumers
from tests.fakes.groups import REBALANCE_MS, a_topic, subscription

HARD_STATE = (
    "members",
    "targets",
    "owners",
    "static",
    "resolved",
    "group_epoch",
    "assignment_epoch",
    "metadata_hash",
    "assigned_at",
)
SUBSCRIPTIONS = st.sampled_from(
    [
        (("orders",), ""),
        (("orders", "other"), ""),
        (("other",), ""),
        (("third", "orders"), ""),
        ((), "o.*"),
        (("third",), "oth.*"),
        ((), ".*"),
    ]
)


class NewMember:
    """A member of the consumer protocol. It may be slow to give back, but it never lies."""

    def __init__(self, world, member_id, subscription, instance=None):
        self.world = world
        self.member_id = member_id
        self.instance = instance
        self.topics, self.pattern = subscription
        self.member_epoch = 0
        self.owned, self.wanted = set(), set()
        self.is_changed = True

    def step(self):
        """One heartbeat; a full one if it joins or has changed its subscription."""
        is_joining = self.member_epoch == 0
        if is_joining:
            self.owned = set()
        how = {"owned": self.by_topic(), "instance": self.instance}
        if is_joining or self.is_changed:
            how |= {"topics": self.topics, "pattern": self.pattern, "rebalance_ms": REBALANCE_MS}
        answer = self.world.groups.beat(self.member_id, self.member_epoch, **how)
        if answer.error_code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNRELEASED_INSTANCE_ID,
        ):
            # Fenced: another member may own its partitions by now.
            self.member_epoch, self.owned, self.wanted = 0, set(), set()
            return
        assert answer.error_code == ErrorCode.NONE, answer
        self.is_changed = False
        self.member_epoch = answer.member_epoch
        if answer.assignment is not None:
            self.wanted = {
                (topic.topic_id, partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            }

    def obey(self):
        self.owned = set(self.wanted)

    def by_topic(self):
        names = {}
        for topic_id, partition in sorted(self.owned):
            name = self.world.groups.topic_name(topic_id)
            if isinstance(name, str):  # a deleted topic has no name
                names.setdefault(name, []).append(partition)
        return names

    def leave(self, member_epoch=-1):
        self.world.groups.beat(self.member_id, member_epoch, instance=self.instance)
        self.member_epoch, self.owned, self.wanted = 0, set(), set()

    def change(self, subscription):
        self.topics, self.pattern = subscription
        self.is_changed = True


class OldMember:
    """An eager classic consumer: it gives everything back before it joins."""

    def __init__(self, world, topics):
        self.world = world
        self.member_id = ""
        self.topics = topics
        self.generation = -1
        self.owned = set()
        self.joining = self.syncing = None

    def step(self):
        groups = self.world.groups
        if self.joining is not None:
            if not groups.waits(self.joining):
                self.joined(groups.answer(self.joining))
        elif self.syncing is not None:
            if not groups.waits(self.syncing):
                self.synced(groups.answer(self.syncing))
        elif self.generation < 0:
            self.join()
        else:
            code = groups.heartbeat(self.member_id, self.generation).error_code
            if code:
                self.fall_out(code)

    def fall_out(self, code):
        assert code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
        ), code
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.generation, self.owned = -1, set()
        self.joining = self.syncing = None

    def join(self):
        self.owned = set()
        protocols = (("range", subscription(*self.topics)),)
        self.joining = self.world.groups.join(self.member_id, protocols=protocols)
        if not self.world.groups.waits(self.joining):
            self.joined(self.world.groups.answer(self.joining))

    def joined(self, answer):
        self.joining = None
        if answer.error_code:
            self.fall_out(answer.error_code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        shares = self.world.shares(answer) if answer.leader == answer.member_id else ()
        self.syncing = self.world.groups.sync(self.member_id, self.generation, shares)
        if not self.world.groups.waits(self.syncing):
            self.synced(self.world.groups.answer(self.syncing))

    def synced(self, answer):
        self.syncing = None
        if answer.error_code:
            self.fall_out(answer.error_code)
            return
        if answer.assignment:
            found = decode_versioned(m.ConsumerProtocolAssignment, answer.assignment)
            self.owned = {
                (self.world.groups.topic_id(topic.topic), partition)
                for topic in found.assigned_partitions
                if topic.topic in self.world.groups.cluster.metadata.topics
                for partition in topic.partitions
            }

    def obey(self):
        """It takes its assignment at once."""

    def leave(self):
        if self.member_id:
            self.world.groups.leave(self.member_id)
        self.generation, self.owned, self.member_id = -1, set(), ""
        self.joining = self.syncing = None

    def forget_waiting(self):
        """The coordinator has moved; answers to parked requests will not come."""
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.generation, self.owned = -1, set()


class ConsumerGroups(RuleBasedStateMachine):
    new = Bundle("new")
    old = Bundle("old")

    @initialize(interval_ms=st.sampled_from([0, 0, 1_000]))
    def begin(self, interval_ms):
        self.groups = Consumers(group_consumer_assignment_interval_ms=interval_ms)
        self.members = []
        self.gone = set()  # deleted topics that a member may still own
        self.count = 0
        self.committed = {}

    def shares(self, joined):
        """The assignment of a classic leader: round robin."""
        by_member = {x.member_id: {} for x in joined.members}
        metadata = self.groups.cluster.metadata
        readers = {}
        for other in joined.members:
            read = decode_versioned(m.ConsumerProtocolSubscription, other.metadata)
            for topic in read.topics:
                readers.setdefault(topic, []).append(other.member_id)
        for topic, names in sorted(readers.items()):
            if topic in metadata.topics:
                for partition in range(len(metadata.topics[topic].partitions)):
                    mine = by_member[names[partition % len(names)]]
                    mine.setdefault(topic, []).append(partition)
        kept = m.ConsumerProtocolAssignment
        return {
            name: encode_versioned(
                kept(
                    assigned_partitions=[
                        kept.TopicPartition(topic=topic, partitions=partitions)
                        for topic, partitions in topics.items()
                    ]
                ),
                0,
            )
            for name, topics in by_member.items()
        }

    # -- members ---------------------------------------------------------------------------

    @rule(target=new, subscription=SUBSCRIPTIONS, is_static=st.booleans())
    def a_new_member_comes(self, subscription, is_static):
        self.count += 1
        instance = f"i{self.count}" if is_static else None
        member = NewMember(self, f"n{self.count}", subscription, instance)
        self.members.append(member)
        member.step()
        return member

    @rule(target=old, topics=st.sampled_from([("orders",), ("orders", "other"), ("third",)]))
    def a_classic_member_comes(self, topics):
        member = OldMember(self, topics)
        self.members.append(member)
        member.step()
        return member

    @rule(member=new)
    def it_heartbeats(self, member):
        member.step()

    @rule(member=new)
    def it_does_as_told(self, member):
        member.obey()

    @rule(member=new, subscription=SUBSCRIPTIONS)
    def it_reads_something_else(self, member, subscription):
        member.change(subscription)
        member.step()

    @rule(member=consumes(new))
    def it_leaves(self, member):
        self.members.remove(member)
        member.leave()

    @precondition(lambda self: any(getattr(x, "instance", None) for x in self.members))
    @rule(data=st.data())
    def a_static_member_is_away_and_back_under_another_id(self, data):
        static = [x for x in self.members if getattr(x, "instance", None)]
        member = data.draw(st.sampled_from(static))
        member.leave(-2)
        self.count += 1
        member.member_id = f"n{self.count}"
        if data.draw(st.booleans()):
            member.step()

    @rule(member=old)
    def a_classic_member_goes_on(self, member):
        member.step()

    @rule(member=consumes(old))
    def a_classic_member_leaves(self, member):
        self.members.remove(member)
        member.leave()

    # -- surroundings ----------------------------------------------------------------------

    @rule(name=st.sampled_from(["orders", "other", "third"]), more=st.integers(1, 3))
    def a_topic_is_made_or_grows(self, name, more):
        metadata = self.groups.cluster.metadata
        before = metadata.topics.get(name)
        if before is None:
            self.count += 1
            made = a_topic(name, more, fill=f"{name}{self.count}")
        else:
            made = a_topic(name, min(len(before.partitions) + more, 9), fill="x")
            made = before._replace(
                partitions=tuple(
                    part._replace(topic_id=before.topic_id) for part in made.partitions
                )
            )
        self.groups.cluster.metadata = metadata.with_topics([made])

    @rule(name=st.sampled_from(["other", "third"]))
    def a_topic_is_deleted(self, name):
        metadata = self.groups.cluster.metadata
        if name in metadata.topics:
            self.gone.add(metadata.topics[name].topic_id)
            self.groups.drop_topic(name)

    @rule(ms=st.sampled_from([0, 1_000, 7_000, CONSUMER_SESSION_MS // 2, CONSUMER_SESSION_MS]))
    def time_passes(self, ms):
        self.groups.pass_time(ms)

    @rule()
    def the_broker_restarts(self):
        self.groups.reload()
        for member in self.members:
            if isinstance(member, OldMember):
                member.forget_waiting()

    @rule()
    def the_log_is_compacted(self):
        last = {key: offset for offset, (key, *_) in enumerate(self.groups.log)}
        self.groups.log = [
            entry for offset, entry in enumerate(self.groups.log) if last[entry[0]] == offset
        ]

    @rule(member=new, partition=st.integers(0, 3), lag=st.integers(0, 3))
    def it_commits(self, member, partition, lag):
        """Accepted from a member for partitions it owned since its epoch, else rejected."""
        group = self.groups.shard.groups.get("g")
        if not isinstance(group, ConsumerGroup) or member.member_id not in group.members:
            return
        known = group.members[member.member_id]
        topic_id = self.groups.topic_id("orders")
        since = known.assigned_epoch(topic_id, partition)
        member_epoch = known.member_epoch - lag
        if member_epoch < 0 or partition >= len(
            self.groups.cluster.metadata.topics["orders"].partitions
        ):
            return
        offset = len(self.groups.log)
        codes = self.groups.commit({partition: offset}, known.member_id, member_epoch)
        is_fine = lag == 0 or (since is not None and since <= member_epoch)
        assert codes[partition] == (ErrorCode.NONE if is_fine else ErrorCode.STALE_MEMBER_EPOCH)
        if is_fine:
            self.committed[partition] = offset

    # -- what must always hold -------------------------------------------------------------

    @property
    def group(self):
        return self.groups.shard.groups.get("g")

    @invariant()
    def no_partition_has_two_owners(self):
        if isinstance(self.group, ConsumerGroup):
            books = {}
            for name, member in self.group.members.items():
                for owned in (member.assigned, member.revoking):
                    for topic_id, partitions in owned.items():
                        for partition in partitions:
                            assert (topic_id, partition) not in books
                            books[topic_id, partition] = name
            assert books == self.group.owners
        present = self.group.members if self.group is not None else {}
        believed = {}
        for member in self.members:
            if member.member_id not in present:
                continue  # fenced; its next heartbeat tells it
            for owned in member.owned:
                if owned[0] in self.gone:
                    continue
                assert owned not in believed, "two members believe that they own it"
                believed[owned] = member.member_id
        if isinstance(self.group, ConsumerGroup):
            for owned, name in believed.items():
                assert self.group.owners.get(owned) == name

    @invariant()
    def a_target_has_every_subscribed_partition_once(self):
        group = self.group
        if not isinstance(group, ConsumerGroup) or not group.members:
            return
        named = [
            (topic_id, partition)
            for target in group.targets.values()
            for topic_id, partitions in target.items()
            for partition in partitions
        ]
        assert len(named) == len(set(named))
        assert group.targets.keys() <= group.members.keys()
        metadata = self.groups.cluster.metadata
        if group.assignment_epoch == group.group_epoch and (
            group.metadata_hash == topics_hash(group.subscribed_topics, metadata)
        ):
            assert set(named) == {
                (metadata.topics[name].topic_id, partition)
                for name in group.subscribed_topics
                if name in metadata.topics
                for partition in range(len(metadata.topics[name].partitions))
            }

    @invariant()
    def the_log_tells_the_same(self):
        shard = GroupShard(self.groups.cluster)
        for offset, (key, value, producer_id) in enumerate(self.groups.log):
            shard.replay(key, value, offset, producer_id, 0)
        ours, read = self.group, shard.groups.get("g")
        if isinstance(ours, ConsumerGroup):
            assert isinstance(read, ConsumerGroup)
            for name in HARD_STATE:
                assert getattr(read, name) == getattr(ours, name), name
        else:
            assert read is None or isinstance(read, ClassicGroup)

    @invariant()
    def no_commit_is_lost(self):
        if self.group is not None:
            assert self.groups.offsets() == self.committed

    def teardown(self):
        """All members keep sending heartbeats: the group settles and assigns everything."""
        if not hasattr(self, "groups") or not self.members:
            return
        for _ in range(60):
            for member in self.members:
                member.step()
                member.obey()
            self.groups.pass_time(1_000)
        group = self.group
        assert group.state_name == "Stable", group.state_name
        had = set().union(*(member.owned for member in self.members))
        if isinstance(group, ConsumerGroup):
            for member in self.members:
                target = group.targets[member.member_id]
                assert member.owned == {
                    (topic_id, partition)
                    for topic_id, partitions in target.items()
                    for partition in partitions
                }
            metadata = self.groups.cluster.metadata
            assert had == {
                (metadata.topics[name].topic_id, partition)
                for name in group.subscribed_topics
                if name in metadata.topics
                for partition in range(len(metadata.topics[name].partitions))
            }


ConsumerGroups.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerGroups = ConsumerGroups.TestCase
