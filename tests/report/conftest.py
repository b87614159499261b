"""One warehouse, and its pages, for all tests of a worker."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import headrace.report
from headrace.report.day import Day
from headrace.report.definition import load_report
from headrace.report.page import build_page
from tests.report.warehouse import write_warehouse

DAILY = Path(headrace.report.__file__).parent / "daily.py"


def build(warehouse, day=None, *, file=DAILY, static=True):
    report = load_report(file)
    with Day(warehouse, day, report.clock_topics, report.job_tables) as opened:
        return build_page(report, file, opened, static=static)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory):
    return write_warehouse(tmp_path_factory.mktemp("reports") / "warehouse")


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory):
    """The same day, until three minutes after three."""
    until = datetime(2026, 11, 16, 15, 3, tzinfo=UTC)
    return write_warehouse(tmp_path_factory.mktemp("reports") / "warehouse", until=until)


@pytest.fixture(scope="session")
def static_page(warehouse):
    return build(warehouse)


@pytest.fixture(scope="session")
def page(warehouse):
    return build(warehouse, static=False)
