"""Files on disk: patterns, renames, deletions, siblings."""

import pytest

from headrace.ship.files import LogFiles
from headrace.ship.generations import START, Generation


@pytest.fixture
def files(tmp_path):
    made = LogFiles([str(tmp_path / "app.log*")])
    yield made
    made.close()


def generation(path, inode):
    return Generation("g", str(path), str(path), path.stat().st_dev, inode, START.tail)


def test_a_pattern_finds_regular_files(files, tmp_path):
    (tmp_path / "app.log").write_text("x")
    (tmp_path / "app.log.d").mkdir()
    (tmp_path / "other").write_text("x")
    assert [file.path for file in files.scan([])] == [str(tmp_path / "app.log")]


def test_a_name_with_special_characters_is_a_file(tmp_path):
    (tmp_path / "a[1].log").write_text("x")
    found = LogFiles([str(tmp_path / "a[1].log")])
    assert len(found.scan([])) == 1
    found.close()


def test_a_file_is_unchanged_until_it_is_written(files, tmp_path):
    path = tmp_path / "app.log"
    path.write_text("x")
    (file,) = files.scan([])
    assert not file.unchanged
    file.compared()
    assert files.scan([]) == [file] and file.unchanged
    path.write_text("xy")
    assert files.scan([]) == [file] and not file.unchanged and file.size == 2


def test_an_open_file_is_followed_through_renames_and_deletion(tmp_path):
    files = LogFiles([str(tmp_path / "app.log")])
    path = tmp_path / "app.log"
    path.write_text("x")
    (file,) = files.scan([])
    assert file.read(0, 10) == b"x"
    path.rename(tmp_path / "moved")
    assert files.scan([]) == [file] and file.path == str(tmp_path / "moved")
    (tmp_path / "moved").unlink()
    assert files.scan([]) == [file] and file.deleted and file.read(0, 10) == b"x"
    files.drop(file)
    assert files.scan([]) == []


def test_a_closed_file_is_not_mistaken_for_its_successor(files, tmp_path):
    path = tmp_path / "app.log"
    path.write_text("x")
    (file,) = files.scan([])
    file.close()
    path.rename(tmp_path / "old")
    path.write_text("y")
    assert file.read(0, 10) == b"" and not file.is_open


def test_siblings_have_similar_names_and_are_not_known(files, tmp_path):
    for name in ("app.log", "app-1.log", "other.log"):
        (tmp_path / name).write_text("x")
    files.scan([])
    found = list(files.siblings(generation(tmp_path / "app.log", 0)))
    assert [file.path for file in found] == [str(tmp_path / "app-1.log")]
