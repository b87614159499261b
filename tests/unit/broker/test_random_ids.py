"""Random ids have the forms that clients and command lines expect."""

import uuid

from headrace.broker import random_ids
from headrace.model.ids import id_from_text, id_to_text


def test_ids_are_random_uuids():
    assert uuid.UUID(random_ids.draw_member_id()).version == 4
    assert uuid.UUID(bytes=random_ids.draw_topic_id()).version == 4
    assert uuid.UUID(bytes=id_from_text(random_ids.draw_cluster_id())).version == 4
    assert len({random_ids.draw_member_id() for _ in range(100)}) == 100


def test_the_text_of_an_id_does_not_look_like_an_option(monkeypatch):
    draws = iter([b"\xf8" + bytes(15), bytes(16)])
    monkeypatch.setattr("os.urandom", lambda size: next(draws))
    assert id_to_text(b"\xf8" + bytes(15)).startswith("-")
    assert not id_to_text(random_ids.draw_topic_id()).startswith("-")
    assert next(draws, None) is None, "the first draw was discarded"


def test_a_fetch_session_id_is_never_negative():
    assert all(0 <= random_ids.draw_fetch_session_id() < 1 << 31 for _ in range(100))
