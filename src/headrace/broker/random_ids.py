"""Random ids and numbers that the broker draws, in one place."""

import os

from headrace.core.topic_changes import Dice
from headrace.model.ids import TopicId, id_to_text


def _uuid() -> bytes:
    """A random UUID, version 4. Importing ``uuid`` would take longer than all calls of this."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


def _uuid_for_base64() -> bytes:
    """A UUID whose text does not start with a dash, which would look like an option.

    Kafka avoids the dash too.
    """
    while True:
        raw = _uuid()
        if raw[0] >> 2 != 62:
            return raw


def draw_cluster_id() -> str:
    return id_to_text(_uuid_for_base64())


def draw_topic_id() -> TopicId:
    return TopicId(_uuid_for_base64())


def draw_member_id() -> str:
    """A UUID with dashes; an id of a group member, or the last part of one."""
    text = _uuid().hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def draw_dice() -> Dice:
    """Where the placement of a new topic begins."""
    raw = os.urandom(8)
    return Dice(int.from_bytes(raw[:4]), int.from_bytes(raw[4:]))


def draw_fetch_session_id() -> int:
    """A positive 32-bit number, or 0, which the caller draws again."""
    return int.from_bytes(os.urandom(4)) >> 1
