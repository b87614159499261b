"""Random ids and numbers of a broker, from the random generator of its world."""

from random import Random

from headrace.core.topic_changes import PlacementSeed
from headrace.model.ids import TopicId, id_to_text


def _uuid(random: Random) -> bytes:
    """A random UUID, version 4. Importing ``uuid`` would take longer than all calls together."""
    raw = bytearray(random.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


def _uuid_for_base64(random: Random) -> bytes:
    """A UUID whose text does not start with a dash, which would look like an option.

    Kafka avoids the dash too.
    """
    while True:
        raw = _uuid(random)
        if raw[0] >> 2 != 62:
            return raw


def draw_cluster_id(random: Random) -> str:
    return id_to_text(_uuid_for_base64(random))


def draw_topic_id(random: Random) -> TopicId:
    return TopicId(_uuid_for_base64(random))


def draw_member_id(random: Random) -> str:
    """A UUID with dashes; an id of a group member, or the last part of one."""
    text = _uuid(random).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def draw_placement_seed(random: Random) -> PlacementSeed:
    """Where the placement of a new topic starts."""
    return PlacementSeed(random.getrandbits(32), random.getrandbits(32))


def draw_fetch_session_id(random: Random) -> int:
    """A positive 32-bit number, or 0, which the caller draws again."""
    return random.getrandbits(31)
