"""Load, compaction, retention and reload of one table at once, in processes; rows are counted."""

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest
from deltalake import DeltaTable

from headrace.pipeline.warehouse.retention import remove_before
from headrace.pipeline.warehouse.table import FILES_TXN
from tests.fakes.table_workers import FIRST_DAY_KEPT, create, day_of, load, span

pytestmark = pytest.mark.slow

CHANGES = 4  # of each worker, while the others work too


def race(table, *roles):
    """Let all work at the same time, until each has changed the table some times."""
    with ExitStack() as stack:
        workers = []
        for role in roles:
            command = [sys.executable, "-m", "tests.fakes.table_workers", role, str(table.location)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers.append(stack.enter_context(subprocess.Popen(command, **pipes)))
        try:
            for worker in workers:
                for _ in range(CHANGES):
                    assert worker.stdout.readline() == "changed\n"
        finally:
            for worker in workers:
                worker.stdin.close()
                worker.stdout.read()
    assert all(worker.returncode == 0 for worker in workers)


@pytest.mark.parametrize(
    "roles",
    [
        ("load", "compact", "compact"),
        ("load", "compact", "retention"),
        ("load", "reload", "compact"),
        ("load", "reload", "retention"),
        ("load", "load", "reload"),
    ],
    ids="-".join,
)
def test_every_row_is_there_once(tmp_path, roles):
    table = create(tmp_path / "orders")
    for _ in range(4):
        assert load(table, partition=1)
    race(table, *roles)

    table.update()
    if "retention" in roles:
        remove_before(table, FIRST_DAY_KEPT)
    expected = Counter()
    for partition in range(2):
        end = table.recorded(span(partition, 0, 0).txn_id)
        expected.update((partition, offset) for offset in range(end))
    if "retention" in roles:
        kept = FIRST_DAY_KEPT.isoformat()
        expected = Counter(row for row in expected if day_of(row[1]) >= kept)
    found = DeltaTable(str(table.location)).to_pyarrow_table()
    columns = (found.column(name).to_pylist() for name in ("_partition", "_offset"))
    assert Counter(zip(*columns, strict=True)) == expected
    assert table.recorded(FILES_TXN) >= 1
