"""The identity of files: rename, copy, truncate, replace, delete, compress."""

import pytest

from headrace.ship.generations import COPY_GRACE_S, Kind
from tests.fakes.log_disk import HandShipper, LogDisk

LOG = "/log/app.log"


@pytest.fixture
def disk():
    return LogDisk()


@pytest.fixture
def shipper(disk):
    disk.append(LOG, b"one\ntwo\n")
    made = HandShipper(disk)
    assert made.scan() == [Kind.NEW]
    made.read()
    return made


def sent(shipper):
    return sorted(shipper.events.values())


def test_a_renamed_file_keeps_its_generation_and_its_event_ids(disk, shipper):
    disk.append(LOG, b"three\n")
    disk.rename(LOG, LOG + ".1")
    disk.append(LOG, b"four\n")
    assert shipper.scan() == [Kind.RENAMED, Kind.NEW]
    shipper.read()
    assert shipper.events[LOG, "g1", 8] == b"three\n" and shipper.events[LOG, "g2", 0] == b"four\n"


def test_an_empty_file_has_no_generation(disk, shipper):
    disk.append("/log/app.log.new", b"")
    assert shipper.scan() == []


def test_a_truncated_file_is_a_new_generation(disk, shipper):
    disk.truncate(LOG)
    disk.append(LOG, b"a\n")
    assert shipper.scan() == [Kind.REPLACED, Kind.NEW]
    shipper.read()
    assert shipper.events[LOG, "g2", 0] == b"a\n" and shipper.lost == 0


def test_a_file_that_was_rewritten_and_is_longer_is_a_new_generation(disk, shipper):
    disk.truncate(LOG)
    disk.append(LOG, b"five\nsix\nseven\n")
    assert shipper.scan() == [Kind.REPLACED, Kind.NEW]


def test_the_same_beginning_does_not_hide_new_content(disk):
    banner = b"#" * 1500 + b"\n"
    disk.append(LOG, banner + b"one\n")
    shipper = HandShipper(disk)
    shipper.scan()
    shipper.read()
    disk.truncate(LOG)
    disk.append(LOG, banner + b"two\nthree\n")
    assert shipper.scan() == [Kind.REPLACED, Kind.NEW]


def test_a_reused_inode_is_a_new_generation(disk, shipper):
    disk.delete(LOG)
    disk.append(LOG, b"a new file with the inode of the old one\n")
    assert shipper.scan() == [Kind.REPLACED, Kind.NEW]


def test_the_rest_of_a_truncated_file_is_read_from_its_copy(disk, shipper):
    disk.append(LOG, b"three\n")
    disk.copy(LOG, LOG + ".1")
    disk.truncate(LOG)
    disk.append(LOG, b"four\n")
    assert shipper.scan() == [Kind.REPLACED, Kind.NEW, Kind.COPIED]
    shipper.read()
    assert shipper.events[LOG, "g1", 8] == b"three\n" and len(shipper.events) == 4
    assert shipper.scan() == []


def test_a_copy_waits_for_its_original_to_be_truncated(disk, shipper):
    disk.copy(LOG, LOG + ".1")
    assert shipper.scan() == [] and shipper.catalog.waiting
    disk.truncate(LOG)
    assert shipper.scan() == [Kind.REPLACED, Kind.COPIED]
    assert shipper.scan() == [] and not shipper.catalog.waiting


def test_a_copy_of_a_file_that_stays_is_a_file_of_its_own(disk, shipper):
    disk.copy(LOG, LOG + ".1")
    assert shipper.scan() == []
    shipper.now = COPY_GRACE_S + 1
    assert shipper.scan() == [Kind.NEW]


def test_a_copy_that_ends_early_is_not_shipped_under_another_id(disk, shipper):
    disk.copy(LOG, LOG + ".1")
    disk.append(LOG, b"three\n")
    shipper.read()
    disk.truncate(LOG)
    shipper.settle()
    assert {name for _, name, _ in shipper.events} == {"g1"} and len(shipper.events) == 3


def test_a_rotated_file_is_found_outside_the_pattern(disk):
    disk.append("/log/app.log", b"one\n")
    shipper = HandShipper(disk, pattern="/log/app.log")
    shipper.scan()
    shipper.read()
    disk.append("/log/app.log", b"two\n")
    disk.rename("/log/app.log", "/log/app-1.log")
    shipper.crash()
    # The stem of the first name: rotation may put a number before the extension.
    assert shipper.scan() == [Kind.RENAMED]
    shipper.read()
    assert sent(shipper) == [b"one\n", b"two\n"]


def test_what_was_deleted_unread_is_reported(disk, shipper):
    disk.append(LOG, b"three\nfour\n")
    shipper.scan()
    disk.delete(LOG)
    assert shipper.scan() == [Kind.LOST]
    assert shipper.lost == 11 and shipper.scan() == []
    assert "at least 11 bytes of generation g1" in str(shipper.findings[-1])


def test_compressed_files_are_skipped_once(disk, shipper):
    disk.append(LOG + ".2.gz", b"\x1f\x8b\x08\x00rest")
    assert shipper.scan() == [Kind.COMPRESSED]
    assert shipper.scan() == []


def test_new_files_may_start_at_their_end(disk):
    disk.append(LOG, b"old\nhalf a li")
    shipper = HandShipper(disk)
    shipper.scan(at_end=True)
    disk.append(LOG, b"ne\nnew\n")
    shipper.read()
    assert sent(shipper) == [b"half a line\n", b"new\n"]


def test_another_name_is_not_a_copy(disk):
    disk.append("/log/a.log", b"started\n")
    disk.append("/log/b.log", b"started\n")
    shipper = HandShipper(disk, pattern="/log/")
    assert shipper.scan() == [Kind.NEW, Kind.NEW]


def test_a_copy_that_ends_early_is_read_again_from_the_acknowledged_position(disk, shipper):
    disk.append(LOG, b"three\n")
    shipper.read(acknowledge=False)
    disk.copy(LOG, LOG + ".1")
    disk.append(LOG, b"four\n")
    shipper.read(acknowledge=False)
    disk.truncate(LOG)
    shipper.scan()
    (generation,) = shipper.catalog.generations.values()
    # What is in flight may be lost if the shipper is killed now.
    assert generation.read == generation.acknowledged
    assert generation.read.offset == 8
