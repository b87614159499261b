"""What all kinds of groups have in common, and what their shard needs of each."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.core.outcome import NewRecord, Outcome, RequestContext, Ticket
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.config import BrokerConfig
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m

TEXT_SIZE_MAX = 32_767  # bytes of a text in most records: its length has 16 bits


class GroupKind(Enum):
    """The value is what ListGroups calls it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Cluster(Protocol):
    """What groups may know of the world around them, always as it is now."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metadata(self) -> ClusterMetadata: ...
    def group_settings(self, group_id: str) -> Mapping[str, str]:
        """Settings of one group that somebody changed (resource type GROUP)."""
        ...


class Member(NamedTuple):
    """Who says so: the identity that a request about a group claims."""

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
    """How offsets of a group grow old. See ``Group.offset_expiry``."""

    # An offset is as old as its commit, but no older than this moment.
    since: Millis = Millis(-1)
    # Topics whose offsets do not expire, because somebody still reads them.
    kept_topics: frozenset[str] = frozenset()


class Timer(NamedTuple):
    """The name of a deadline. The shard brings it back to its group when its time has come."""

    group_id: str
    kind: str
    subject: str = ""  # of what: a member id, mostly


class Group(Protocol):
    """One group as its shard sees it. Checks raise ``Rejected`` with the code for the client."""

    group_id: str
    kind: GroupKind

    @property
    def state_name(self) -> str:
        """As ListGroups tells it: ``Stable``."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer`` for consumers; empty for a group that only ever had offsets committed."""
        ...

    # The classic requests. A group of another kind serves them for members that still speak
    # the classic protocol, becomes a classic group, or refuses.

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
        """A deadline that this group had set has come."""
        ...

    def loaded(self, now: Millis) -> Outcome:
        """The log is replayed: start the sessions of the members that it brought back."""
        ...

    def check_commit(
        self,
        member: Member,
        *,
        transactional: bool,
        supports_member_epoch: bool,
        partitions: Callable[[], Iterable[tuple[TopicId, int]]],
    ) -> None:
        """May this member commit offsets now? ``partitions`` tells of which, if that matters."""
        ...

    def committed(self, member: Member, now: Millis) -> None:
        """The commit was allowed: what follows for the member's session."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """May this member read the offsets? (KIP-848 members say who they are.)"""
        ...

    def check_offset_delete(self) -> None:
        """May offsets be deleted, at least of topics that nobody is subscribed to?"""
        ...

    def is_subscribed(self, topic: str) -> bool: ...

    def check_delete(self) -> None:
        """May the whole group be deleted?"""
        ...

    def offset_expiry(self) -> Expiry | None:
        """By what offsets expire now; None: not at all."""
        ...

    @property
    def is_empty(self) -> bool:
        """Nobody is in it and nobody is about to be, so without offsets it can go."""
        ...

    def tombstones(self) -> tuple[NewRecord, ...]:
        """What takes all records of the group itself (not its offsets) out of the log."""
        ...

    def describe(self) -> m.DescribeGroupsResponse.DescribedGroup:
        """For DescribeGroups; raises Rejected(GROUP_ID_NOT_FOUND) if it is no classic group."""
        ...
