"""The shape of a producer's requests: the next request of the same shape needs no decoding.

A producer that writes to one partition sends requests that differ only in correlation id and
records. A ``ProduceShape`` remembers the other bytes and their positions; a match takes two
comparisons. It also has the response as a template.

    request     size | api key, version | correlation id | client id … index | records | tags
                       ^^^^^ prefix ^^^^                   ^^^^^^ middle ^^^^
"""

from struct import Struct

_FLEXIBLE_SINCE = 9
_NO_TAGS = bytes(3)  # of partition, topic and request

_i32 = Struct(">i").unpack_from
_put_outcome = Struct(">hqqq").pack_into
_put_outcome_v3 = Struct(">hqq").pack_into
_put_i32 = Struct(">i").pack_into


class ProduceShape:
    """The shape of one client's requests with one topic and one partition."""

    __slots__ = (
        "_prefix",
        "_middle",
        "_records_at",
        "_flexible",
        "_template",
        "_outcome_at",
        "_v3",
    )

    def __init__(self, frame: memoryview, api_version: int, records: memoryview) -> None:
        """``frame`` is a request without its size; ``records`` is the view decoded from it.

        The shape includes all fields before the records except the correlation id, so all matching
        requests have the same acks, timeout and transactional id.
        """
        self._flexible = api_version >= _FLEXIBLE_SINCE
        self._v3 = api_version < 5
        size = len(records)
        tail = len(_NO_TAGS) if self._flexible else 0
        size_length = _uvarint_length(size + 1) if self._flexible else 4
        self._records_at = len(frame) - tail - size - size_length
        self._prefix = bytes(frame[:4])
        self._middle = bytes(frame[8 : self._records_at])
        self._template = b""
        self._outcome_at = 0

    def learn_answer(self, answer: bytes, outcome_at: int) -> None:
        """``answer`` is a response frame with its error code at ``outcome_at``."""
        self._template = answer
        self._outcome_at = outcome_at

    def match(self, view: memoryview, start: int, end: int) -> memoryview | None:
        """The records of the request in ``[start, end)`` if it has this shape."""
        data = view.obj
        assert isinstance(data, bytearray)  # a view cannot compare in place
        if not data.startswith(self._prefix, start) or not data.startswith(self._middle, start + 8):
            return None
        at = start + self._records_at
        if self._flexible:
            size = shift = 0
            while at < end:
                byte = view[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 28:
                    return None
            records_end = at + size - 1
            if records_end + 3 != end or size < 1 or not data.startswith(_NO_TAGS, records_end):
                return None
        else:
            if at + 4 > end:
                return None
            (size,) = _i32(view, at)
            at += 4
            records_end = at + size
            if size < 0 or records_end != end:
                return None
        return view[at:records_end]

    def answer(
        self,
        correlation_id: bytes,
        error_code: int,
        base_offset: int,
        append_time: int,
        log_start: int,
    ) -> bytearray:
        out = bytearray(self._template)
        out[4:8] = correlation_id
        if self._v3:
            _put_outcome_v3(out, self._outcome_at, error_code, base_offset, append_time)
        else:
            _put_outcome(out, self._outcome_at, error_code, base_offset, append_time, log_start)
        return out


def _uvarint_length(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def outcome_position(api_version: int, topic_name_size: int) -> int:
    """The position of the error code in a response frame with one topic and one partition."""
    if api_version < _FLEXIBLE_SINCE:
        # size, correlation id | topics | name | partitions | index
        return 8 + 4 + 2 + topic_name_size + 4 + 4
    topic = 16 if api_version >= 13 else _uvarint_length(topic_name_size + 1) + topic_name_size
    return 8 + 1 + 1 + topic + 1 + 4
