"""Random ids and numbers of a broker, from the random generator of its world."""

from random import Random

from headrace.core.topic_changes import Dice
from headrace.model.ids import TopicId, id_to_text


def _uuid(dice: Random) -> bytes:
    """A random UUID, version 4. Importing ``uuid`` would take longer than all calls together."""
    raw = bytearray(dice.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


def _uuid_for_base64(dice: Random) -> bytes:
    """A UUID whose text does not start with a dash, which would look like an option.

    Kafka avoids the dash too.
    """
    while True:
        raw = _uuid(dice)
        if raw[0] >> 2 != 62:
            return raw


def draw_cluster_id(dice: Random) -> str:
    return id_to_text(_uuid_for_base64(dice))


def draw_topic_id(dice: Random) -> TopicId:
    return TopicId(_uuid_for_base64(dice))


def draw_member_id(dice: Random) -> str:
    """A UUID with dashes; an id of a group member, or the last part of one."""
    text = _uuid(dice).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def draw_dice(dice: Random) -> Dice:
    """Where the placement of a new topic starts."""
    return Dice(dice.getrandbits(32), dice.getrandbits(32))


def draw_fetch_session_id(dice: Random) -> int:
    """A positive 32-bit number, or 0, which the caller draws again."""
    return dice.getrandbits(31)
