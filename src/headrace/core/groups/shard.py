"""The groups behind one partition of ``__consumer_offsets``: found by id, dispatched by kind."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct

from headrace.core.groups.classic.group import ClassicGroup, replay_group_metadata
from headrace.core.groups.classic.responses import join_refused, left, refused
from headrace.core.groups.consumer.patterns import TopicPatterns
from headrace.core.groups.consumer.replay import REPLAYERS as CONSUMER_REPLAYERS
from headrace.core.groups.group import Cluster, Group, Member, Timer
from headrace.core.groups.offsets import (
    OFFSET_COMMIT_TYPES,
    AnyCommitRequest,
    Commit,
    Offsets,
    decode_value,
    take_commits,
)
from headrace.core.groups.packed import take_packed
from headrace.core.outcome import (
    NOTHING,
    NewRecord,
    Outcome,
    ProducerStamp,
    Reply,
    RequestContext,
    Ticket,
)
from headrace.core.timers import Timers
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, Millis, TopicId
from headrace.wire import messages as m

Replayer = Callable[["GroupShard", bytes, bytes | None], None]

# By record type. Offsets come first in ``GroupShard.replay`` and are not here.
_REPLAYERS: Mapping[int, Replayer] = {2: replay_group_metadata, **CONSUMER_REPLAYERS}

_RECORD_TYPE = Struct(">h")
_PARTITION = Struct(">i")
_MINUTE_MS = 60_000
_LAST_TIME = (1 << 63) - 1
_EXPIRY = Timer("", "expiry")
_GROUPS_PER_EXPIRY = 200  # looked at in one go; others are served in between
_FIRST_COMMIT_WITH_GROUP_NOT_FOUND = 9
FIRST_COMMIT_WITH_TOPIC_IDS = 10
_FIRST_DESCRIBE_WITH_NOT_FOUND = 6
_DEAD = "Dead"  # what DescribeGroups calls a group that is not there


class GroupShard:
    """Satisfies ``outcome.Shard``. Events that are not about one group alone are here."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.groups: dict[str, Group] = {}
        self.timers: Timers[Timer] = Timers()
        self.offsets = Offsets()
        self.patterns = TopicPatterns()
        self._to_expire: list[str] = []  # groups that this round of expiry has not seen yet

    # -- outcome.Shard --------------------------------------------------------------------

    def replay(
        self,
        record_key: bytes,
        record_value: bytes | None,
        offset: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        if (
            producer_id < 0
            and record_value is not None
            and self.offsets.replay_known(record_key, record_value)
        ):
            return
        (record_type,) = _RECORD_TYPE.unpack_from(record_key)
        if record_type in OFFSET_COMMIT_TYPES:
            begun = self.offsets.replay(record_key, record_value, producer_id)
            if begun is not None:
                self._ensure(begun)
        else:
            replayer = _REPLAYERS.get(record_type)
            if replayer is not None:
                replayer(self, record_key, record_value)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, offset: int
    ) -> None:
        for begun in self.offsets.replay_marker(producer_id, committed):
            self._ensure(begun)

    def _ensure(self, group_id: str) -> None:
        """Offsets need no members: a group comes to be by its first commit too."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(self, group_id)

    def remove(self, group_id: str) -> None:
        """The last record of a group is gone; while it has offsets it stays, without a kind."""
        del self.groups[group_id]
        if self.offsets.of_group(group_id):
            self._ensure(group_id)

    def loaded(self, now: Millis) -> Outcome:
        self._schedule_expiry(now)
        outcome = NOTHING
        for group in list(self.groups.values()):
            outcome += group.loaded(now)
        return outcome

    def tick(self, now: Millis) -> Outcome:
        timer = self.timers.pop_due(now)
        if timer is None:
            return NOTHING
        if timer == _EXPIRY:
            return self._expire(now)
        group = self.groups.get(timer.group_id)
        return group.expired(timer, now) if group is not None else NOTHING

    def next_deadline(self) -> float | None:
        return self.timers.next_deadline()

    # -- the classic protocol -------------------------------------------------------------

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        """``drawn_id`` is a random text, which becomes part of a new member's id."""
        config = self.cluster.config
        if not (
            config.int("group.min.session.timeout.ms")
            <= request.session_timeout_ms
            <= config.int("group.max.session.timeout.ms")
        ):
            return join_refused(ticket, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return join_refused(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self.groups[request.group_id] = ClassicGroup(self, request.group_id)
            outcome = group.join(ticket, context, request, drawn_id, now)
            if group.is_empty:
                del self.groups[request.group_id]  # turned away; nothing of it is kept
            return outcome
        return group.join(ticket, context, request, drawn_id, now)

    def sync(
        self, ticket: Ticket, context: RequestContext, request: m.SyncGroupRequest, now: Millis
    ) -> Outcome:
        group = self.groups.get(request.group_id)
        if group is None:
            return refused(ticket, m.SyncGroupResponse, ErrorCode.UNKNOWN_MEMBER_ID)
        return group.sync(ticket, context, request, now)

    def heartbeat(
        self, ticket: Ticket, context: RequestContext, request: m.HeartbeatRequest, now: Millis
    ) -> Outcome:
        group = self.groups.get(request.group_id)
        if group is None:
            return refused(ticket, m.HeartbeatResponse, ErrorCode.UNKNOWN_MEMBER_ID)
        return group.heartbeat(ticket, context, request, now)

    def leave(
        self, ticket: Ticket, context: RequestContext, request: m.LeaveGroupRequest, now: Millis
    ) -> Outcome:
        """In all versions the members that leave are in ``request.members``."""
        group = self.groups.get(request.group_id)
        if group is None:
            unknown = [
                m.LeaveGroupResponse.MemberResponse(
                    member_id=leaving.member_id,
                    group_instance_id=leaving.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for leaving in request.members
            ]
            return left(ticket, unknown)
        return group.leave(ticket, context, request, now)

    # -- offsets --------------------------------------------------------------------------

    def commit(
        self, ticket: Ticket, context: RequestContext, request: m.OffsetCommitRequest, now: Millis
    ) -> Outcome:
        member = Member(
            request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        code = ErrorCode.NONE
        try:
            self._check_commit(request, member, context.api_version, transactional=False, now=now)
        except Rejected as refusal:
            code = refusal.code
        metadata = self.cluster.metadata
        by_topic_id = context.api_version >= FIRST_COMMIT_WITH_TOPIC_IDS
        expire_at = -1
        if request.retention_time_ms >= 0:
            # The longest time there is means for ever; its end would not fit the record.
            expire_at = min(now + request.retention_time_ms, _LAST_TIME)
        elif not code:
            packed = take_packed(
                request, context.api_version, metadata, by_topic_id, self.offsets, now
            )
            if packed is not None:
                return Outcome(packed[0], (Reply(ticket, packed[1]),))
        metadata_length_max = self.cluster.config.int("offset.metadata.max.bytes")
        commit = Commit(
            request.group_id, metadata, by_topic_id, code, metadata_length_max, expire_at, now
        )
        response = m.OffsetCommitResponse()
        records = take_commits(commit, request, response, self.offsets)
        return Outcome(tuple(records), (Reply(ticket, response),))

    def txn_commit(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.TxnOffsetCommitRequest,
        now: Millis,
    ) -> Outcome:
        """The offsets become pending; the marker of the producer's transaction decides."""
        member = Member(request.member_id, request.group_instance_id, request.generation_id)
        code = ErrorCode.NONE
        try:
            self._check_commit(request, member, context.api_version, transactional=True, now=now)
        except Rejected as refusal:
            code = refusal.code
        response = m.TxnOffsetCommitResponse()
        records = take_commits(
            Commit(
                request.group_id,
                self.cluster.metadata,
                False,
                code,
                self.cluster.config.int("offset.metadata.max.bytes"),
                -1,
                now,
            ),
            request,
            response,
            self.offsets,
        )
        producer = ProducerStamp(request.producer_id, request.producer_epoch)
        return Outcome(tuple(records), (Reply(ticket, response),), producer=producer)

    def _check_commit(
        self,
        request: AnyCommitRequest,
        member: Member,
        api_version: int,
        *,
        transactional: bool,
        now: Millis,
    ) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            if member.generation < 0:
                return  # whoever claims no membership may begin a group by committing
            if not transactional and api_version >= _FIRST_COMMIT_WITH_GROUP_NOT_FOUND:
                raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        by_topic_id = not transactional and api_version >= FIRST_COMMIT_WITH_TOPIC_IDS
        group.check_commit(
            member,
            transactional=transactional,
            api_version=api_version,
            partitions=lambda: _partitions_of(request, self.cluster.metadata, by_topic_id),
        )
        if member.member_id and not transactional:
            group.committed(member, now)

    def fetch_offsets(
        self,
        ticket: Ticket,
        request: m.OffsetFetchRequest.OffsetFetchRequestGroup,
        *,
        require_stable: bool,
        by_topic_id: bool,
    ) -> Outcome:
        """One group's share of an OffsetFetch; topics None asks for all there is."""
        answer = m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=request.group_id)
        group = self.groups.get(request.group_id)
        try:
            if group is not None:
                group.check_offset_fetch(request.member_id, request.member_epoch)
        except Rejected as refusal:
            answer.error_code = refusal.code
            return Outcome(replies=(Reply(ticket, answer),))
        if request.topics is None:
            answer.topics = self._all_offsets(request.group_id, require_stable, by_topic_id)
        else:
            answer.topics = [
                self._topic_offsets(request.group_id, topic, require_stable, by_topic_id)
                for topic in request.topics
            ]
        return Outcome(replies=(Reply(ticket, answer),))

    def _topic_offsets(
        self,
        group_id: str,
        wanted: m.OffsetFetchRequest.OffsetFetchRequestTopics,
        require_stable: bool,
        by_topic_id: bool,
    ) -> m.OffsetFetchResponse.OffsetFetchResponseTopics:
        name = wanted.name
        if by_topic_id:
            state = self.cluster.metadata.topic_by_id(TopicId(wanted.topic_id))
            if state is None:
                answer = _offsets_of(b"", {}, wanted.partition_indexes, None, NO_TOPIC_ID)
                for partition in answer.partitions:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                answer.topic_id = wanted.topic_id
                return answer
            name = state.name
        else:
            state = self.cluster.metadata.topics.get(name)
        found = self.offsets.of_group(group_id).get(name)
        pending = self.offsets if require_stable and self.offsets.has_pending else None
        answer = _offsets_of(
            self.offsets.prefix(group_id, name),
            found.values if found is not None else {},
            wanted.partition_indexes,
            pending,
            state.topic_id if state is not None else NO_TOPIC_ID,
        )
        answer.name, answer.topic_id = name, wanted.topic_id
        return answer

    def _all_offsets(
        self, group_id: str, require_stable: bool, by_topic_id: bool
    ) -> list[m.OffsetFetchResponse.OffsetFetchResponseTopics]:
        pending = self.offsets if require_stable and self.offsets.has_pending else None
        answers = []
        for found in self.offsets.of_group(group_id).values():
            state = self.cluster.metadata.topics.get(found.topic)
            if by_topic_id and state is None:
                continue  # it has no id any more to name it by
            topic_id = state.topic_id if state is not None else NO_TOPIC_ID
            answer = _offsets_of(found.prefix, found.values, found.values, pending, topic_id)
            answer.name, answer.topic_id = found.topic, topic_id
            answers.append(answer)
        return answers

    def delete_offsets(
        self, ticket: Ticket, request: m.OffsetDeleteRequest, now: Millis
    ) -> Outcome:
        response = m.OffsetDeleteResponse()
        group = self.groups.get(request.group_id)
        if group is None:
            response.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            return Outcome(replies=(Reply(ticket, response),))
        try:
            group.check_offset_delete()
        except Rejected as refusal:
            response.error_code = refusal.code
            return Outcome(replies=(Reply(ticket, response),))
        records = []
        for topic in request.topics:
            known = self.cluster.metadata.topics.get(topic.name)
            found = self.offsets.of_group(request.group_id).get(topic.name)
            answer = response.OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answer)
            for wanted in topic.partitions:
                partition = wanted.partition_index
                code = ErrorCode.NONE
                if known is None or not 0 <= partition < len(known.partitions):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group.is_subscribed(topic.name):
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif found is not None and partition in found.values:
                    records.append(NewRecord(found.prefix + _PARTITION.pack(partition), None))
                answer.partitions.append(
                    response.OffsetDeleteResponsePartition(
                        partition_index=partition, error_code=code
                    )
                )
        return Outcome(tuple(records), (Reply(ticket, response),))

    def topics_deleted(self, topics: Iterable[str], now: Millis) -> Outcome:
        """Offsets into topics that are gone would read as lag for ever."""
        return Outcome(tuple(self.offsets.tombstones_of_topics(topics)), splittable=True)

    # -- offsets and groups that grow old -------------------------------------------------

    def _schedule_expiry(self, now: Millis) -> None:
        interval_ms = self.cluster.config.int("offsets.retention.check.interval.ms")
        self.timers.set(_EXPIRY, now + interval_ms)

    def _expire(self, now: Millis) -> Outcome:
        if not self._to_expire:
            self._to_expire = list(self.groups)
        chunk = self._to_expire[-_GROUPS_PER_EXPIRY:]
        del self._to_expire[-_GROUPS_PER_EXPIRY:]
        if self._to_expire:
            self.timers.set(_EXPIRY, now)
        else:
            self._schedule_expiry(now)
        retention_ms = self.cluster.config.int("offsets.retention.minutes") * _MINUTE_MS
        records: list[NewRecord] = []
        for group_id in chunk:
            group = self.groups.get(group_id)
            if group is not None:
                records += self._expired_of(group, retention_ms, now)
        return Outcome(tuple(records), splittable=True)

    def _expired_of(self, group: Group, retention_ms: int, now: Millis) -> list[NewRecord]:
        expiry = group.offset_expiry()
        if expiry is None:
            return []
        group_id = group.group_id
        records = list(self.offsets.expired(group_id, expiry, retention_ms, now))
        left = sum(len(found.values) for found in self.offsets.of_group(group_id).values())
        if len(records) == left and group.is_empty and not self.offsets.pending_of(group_id):
            records += group.tombstones()
        return records

    # -- looking at groups, and deleting them ---------------------------------------------

    def describe(
        self, ticket: Ticket, context: RequestContext, group_id: str, now: Millis
    ) -> Outcome:
        group = self.groups.get(group_id)
        try:
            if group is None:
                raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            answer = group.describe()
        except Rejected as refusal:
            answer = m.DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=_DEAD)
            # KIP-1043: earlier versions cannot tell a group that never was from one that is dead.
            if context.api_version >= _FIRST_DESCRIBE_WITH_NOT_FOUND:
                answer.error_code = refusal.code
                answer.error_message = refusal.message
        return Outcome(replies=(Reply(ticket, answer),))

    def list_groups(
        self, ticket: Ticket, states: frozenset[str], kinds: frozenset[str], now: Millis
    ) -> Outcome:
        """``states`` and ``kinds`` in lower case; empty takes all."""
        response = m.ListGroupsResponse()
        response.groups = [
            response.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.kind.value,
            )
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states)
            and (not kinds or group.kind.value in kinds)
        ]
        return Outcome(replies=(Reply(ticket, response),))

    def delete_group(self, ticket: Ticket, group_id: str, now: Millis) -> Outcome:
        result = m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
        group = self.groups.get(group_id)
        try:
            if group is None:
                raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_delete()
        except Rejected as refusal:
            result.error_code = refusal.code
            return Outcome(replies=(Reply(ticket, result),))
        records = (*self.offsets.tombstones_of_group(group_id), *group.tombstones())
        return Outcome(records, (Reply(ticket, result),), splittable=True)


def _partitions_of(
    request: AnyCommitRequest, metadata: ClusterMetadata, by_topic_id: bool
) -> Iterator[tuple[TopicId, int]]:
    """What a commit is about, as far as it exists."""
    for topic in request.topics:
        state = (
            metadata.topic_by_id(TopicId(topic.topic_id))  # type: ignore[union-attr]
            if by_topic_id
            else metadata.topics.get(topic.name)
        )
        if state is not None:
            for wanted in topic.partitions:
                yield state.topic_id, wanted.partition_index


def _offsets_of(
    prefix: bytes,
    values: Mapping[int, bytes],
    partitions: Iterable[int],
    pending: Offsets | None,
    topic_id: bytes,
) -> m.OffsetFetchResponse.OffsetFetchResponseTopics:
    """``pending``, if given, says which offsets are not stable yet.

    An offset of another topic id was committed for a topic of the same name that is gone.
    """
    answers = []
    make, answer_class = object.__new__, m.OffsetFetchResponse.OffsetFetchResponsePartitions
    for partition in partitions:
        answer = make(answer_class)
        answer.partition_index = partition
        answer.error_code = ErrorCode.NONE
        value = values.get(partition)
        if pending is not None and pending.is_pending(prefix, partition):
            answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            value = None
        answer.committed_offset = answer.committed_leader_epoch = -1
        answer.metadata = ""
        if value is not None:
            offset, leader_epoch, metadata, _, _, committed_id = decode_value(value)
            if committed_id == topic_id or NO_TOPIC_ID in (committed_id, topic_id):
                answer.committed_offset = offset
                answer.committed_leader_epoch = leader_epoch
                answer.metadata = metadata
        answers.append(answer)
    return m.OffsetFetchResponse.OffsetFetchResponseTopics(partitions=answers)
