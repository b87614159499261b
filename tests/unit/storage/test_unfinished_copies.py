"""The copies of a log: a log directory is forgotten with its last copy."""

from pathlib import Path

from headrace.storage.unfinished_copies import UnfinishedCopies


def test_a_directory_with_two_copies_is_kept_until_both_are_removed():
    copies = UnfinishedCopies()
    copies.add(Path("/b/orders-0.1-future"), "B")
    copies.add(Path("/b/orders-0.2-future"), "B")
    copies.add(Path("/a/orders-0.3-future"), "A")
    copies.remove(Path("/b/orders-0.1-future"), "B")
    assert copies.directory_ids == ["A", "B"]
    copies.remove(Path("/b/orders-0.2-future"), "B")
    assert copies.directory_ids == ["A"]
    assert copies.paths == [Path("/a/orders-0.3-future")]


def test_a_noted_directory_stays_while_it_is_offline():
    copies = UnfinishedCopies()
    copies.noted(["A", "B"])
    copies.not_found_in({"A", "C"})
    assert copies.directory_ids == ["B"]
    assert copies.paths == []
