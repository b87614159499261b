"""Random ids have the forms that clients and command lines expect."""

import random
import uuid

from headrace.broker import random_ids
from headrace.model.ids import id_from_text, id_to_text

DICE = random.SystemRandom()


def test_ids_are_random_uuids():
    assert uuid.UUID(random_ids.draw_member_id(DICE)).version == 4
    assert uuid.UUID(bytes=random_ids.draw_topic_id(DICE)).version == 4
    assert uuid.UUID(bytes=id_from_text(random_ids.draw_cluster_id(DICE))).version == 4
    assert len({random_ids.draw_member_id(DICE) for _ in range(100)}) == 100


def test_the_text_of_an_id_does_not_look_like_an_option():
    class Loaded(random.Random):
        draws = [b"\xf8" + bytes(15), bytes(16)]

        def randbytes(self, size):
            return self.draws.pop(0)

    assert id_to_text(b"\xf8" + bytes(15)).startswith("-")
    assert not id_to_text(random_ids.draw_topic_id(Loaded())).startswith("-")
    assert Loaded.draws == [], "the first draw was discarded"


def test_a_fetch_session_id_is_never_negative():
    assert all(0 <= random_ids.draw_fetch_session_id(DICE) < 1 << 31 for _ in range(100))
