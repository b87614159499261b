"""A disk with one log, for the tests that need no other settings."""

import pytest

from tests.fakes.logs import Disk


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "data")
    yield disk
    disk.crash()


@pytest.fixture
def log(disk):
    return disk.log()
