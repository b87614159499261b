"""One member of a classic group, and the topics that its subscription names."""

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError

from headrace.core.groups.group import Timer

SESSION = "session"  # the timer of a member's session

_SUBSCRIPTION_HEAD = Struct(">hi")  # version, number of topics
_LENGTH = Struct(">h")


class ClassicMember:
    """One member, with what it sent in its last JoinGroup."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Sequence[tuple[str, bytes]],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = tuple(protocols)  # name and metadata, in order of preference
        self.assignment = assignment
        self.is_new = False  # its first join is still unanswered
        self.session = Timer(group_id, SESSION, member_id)

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str | None:
        return next((name for name, _ in self.protocols if name in candidates), None)


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a consumer's subscription, which come first in every version.

    Raises ValueError for bytes that are not a subscription. The later fields concern clients only.
    """
    topics = []
    try:
        _, count = _SUBSCRIPTION_HEAD.unpack_from(metadata)
        position = _SUBSCRIPTION_HEAD.size
        if not 0 <= count <= len(metadata):
            raise ValueError(f"a subscription to {count} topics in {len(metadata)} bytes")
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if size < 0 or position + size > len(metadata):
                raise ValueError("the subscription is truncated")
            topics.append(metadata[position : position + size].decode())
            position += size
    except StructError as error:
        raise ValueError("the subscription is truncated") from error
    return topics
