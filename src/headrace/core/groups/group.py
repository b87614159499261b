"""What a shard needs from every kind of group, and the names that all kinds share."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.core.outcome import NewRecord, Outcome, RequestContext, Ticket
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.config import BrokerConfig
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m

TEXT_SIZE_MAX = 32_767  # bytes of a text in most records: the length has 16 bits


class GroupKind(Enum):
    """The value is the name in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Cluster(Protocol):
    """What groups may know about the cluster; always current."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metadata(self) -> ClusterMetadata: ...
    def group_settings(self, group_id: str) -> Mapping[str, str]:
        """Settings that were changed for one group (resource type GROUP)."""
        ...


class Member(NamedTuple):
    """The identity that a request claims."""

    member_id: str
    instance_id: str | None
    generation: int  # or member epoch; -1 claims no membership


class JoinOptions(NamedTuple):
    """What the client's version of JoinGroup expects."""

    requires_known_member: bool  # KIP-394: a dynamic member first gets its id, then joins with it
    supports_skip_assignment: bool  # KIP-814: a returning static leader need not assign again


class CommitOptions(NamedTuple):
    """What the client's version of OffsetCommit expects."""

    by_topic_id: bool  # topics are named by id
    supports_member_epoch: bool  # KIP-848: the client knows member epochs and their error codes
    encode_response: Callable[[m.OffsetCommitResponse, bytearray], None]


class Expiry(NamedTuple):
    """When offsets of a group expire. See ``Group.offset_expiry``."""

    # The retention time starts with the commit, but not before this time.
    since: Millis = Millis(-1)
    # Topics whose offsets do not expire, because members read them.
    kept_topics: frozenset[str] = frozenset()


class Timer(NamedTuple):
    """The name of a deadline. The shard returns it to its group when it expires."""

    group_id: str
    kind: str
    subject: str = ""  # mostly a member id


class Group(Protocol):
    """One group as its shard sees it. Checks raise ``Rejected`` with a code for the client."""

    group_id: str
    kind: GroupKind

    @property
    def state_name(self) -> str:
        """As in ListGroups, for example ``Stable``."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer`` for consumers; empty for a group that only ever had offsets."""
        ...

    # The classic requests. A group of another kind serves them for members that still speak
    # the classic protocol, becomes a classic group, or rejects them.

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        options: JoinOptions,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        """``drawn_id`` is a random text that becomes part of a new member's id."""
        ...

    def sync(self, ticket: Ticket, request: m.SyncGroupRequest, now: Millis) -> Outcome: ...

    def heartbeat(self, ticket: Ticket, request: m.HeartbeatRequest, now: Millis) -> Outcome: ...

    def leave(self, ticket: Ticket, request: m.LeaveGroupRequest, now: Millis) -> Outcome:
        """``request.members`` names the members that leave."""
        ...

    def expired(self, timer: Timer, now: Millis) -> Outcome:
        """A deadline of this group has expired."""
        ...

    def loaded(self, now: Millis) -> Outcome:
        """The log is replayed: start the sessions of its members."""
        ...

    def check_commit(
        self,
        member: Member,
        *,
        transactional: bool,
        supports_member_epoch: bool,
        partitions: Callable[[], Iterable[tuple[TopicId, int]]],
    ) -> None:
        """Whether this member may commit. ``partitions`` returns the partitions of the commit."""
        ...

    def committed(self, member: Member, now: Millis) -> None:
        """The commit was allowed: update the member's session."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whether this member may read offsets (members of KIP-848 identify themselves)."""
        ...

    def check_offset_delete(self) -> None:
        """Whether offsets may be deleted, at least for topics without subscribers."""
        ...

    def is_subscribed(self, topic: str) -> bool: ...

    def check_delete(self) -> None:
        """Whether the whole group may be deleted."""
        ...

    def offset_expiry(self) -> Expiry | None:
        """When offsets expire in the current state; None if they do not."""
        ...

    @property
    def is_empty(self) -> bool:
        """The group has no members, not even pending ones: without offsets it can be removed."""
        ...

    def tombstones(self) -> tuple[NewRecord, ...]:
        """Tombstones for all records of the group, except its offsets."""
        ...

    def describe(self) -> m.DescribeGroupsResponse.DescribedGroup:
        """For DescribeGroups; raises Rejected(GROUP_ID_NOT_FOUND) if it is not a classic group."""
        ...
