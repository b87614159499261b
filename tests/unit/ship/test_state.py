"""The state directory: saved positions return, one shipper at a time."""

import pytest

from headrace.ship.generations import Digest, Generation, Mark
from headrace.ship.state import StateDirectory, StateUnusable, Totals


def generation() -> Generation:
    made = Generation("g1", "/var/a", "/var/a.1", 3, 4, Digest.of(b"head"), size=500)
    for offset in (10, 20, 30):
        made.advance(Mark.after(offset, b"%d" % offset, inside=offset == 20))
    made.acknowledged = made.marks[2]
    return made


def test_positions_return_as_they_were_acknowledged(tmp_path):
    saved = generation()
    StateDirectory(tmp_path).save([saved], Totals(events=5, lost_bytes=7))
    loaded = StateDirectory(tmp_path).load()
    (found,) = loaded.generations
    assert found.read == found.acknowledged == saved.acknowledged
    assert [mark.offset for mark in found.marks] == [0, 10, 20]
    assert (found.head, found.key, found.path, found.size) == (
        saved.head,
        (3, 4),
        "/var/a.1",
        500,
    )
    assert loaded.totals == Totals(events=5, lost_bytes=7)


def test_without_a_file_the_state_is_empty(tmp_path):
    assert StateDirectory(tmp_path / "none").load().generations == []


def test_a_damaged_file_is_not_ignored(tmp_path):
    (tmp_path / "positions.json").write_text('{"generations": [')
    with pytest.raises(StateUnusable, match="cannot parse"):
        StateDirectory(tmp_path).load()


def test_one_shipper_uses_a_directory(tmp_path):
    first, second = StateDirectory(tmp_path / "state"), StateDirectory(tmp_path / "state")
    assert first.owner() is None
    first.lock()
    assert second.owner() is not None
    with pytest.raises(StateUnusable, match="another shipper"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_an_unchanged_state_is_not_written_again(tmp_path):
    state = StateDirectory(tmp_path)
    state.save([generation()], Totals())
    before = (tmp_path / "positions.json").stat().st_ino
    state.save([generation()], Totals())
    assert (tmp_path / "positions.json").stat().st_ino == before
