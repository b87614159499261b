"""Tables of the load, read by other implementations of Delta, and an S3 server that is refused."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.compaction import compact
from headrace.pipeline.warehouse.conditional_puts import check_conditional_puts
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Decision, Span
from headrace.pipeline.warehouse.storage import parse_location
from headrace.pipeline.warehouse.table import now_ms, open_or_create, open_table
from tests.fakes.waiting import wait_until
from tests.interop import delta_jar

ID = bytes(range(16))
FILE = pa.schema([("_topic_id", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])
DAYS = ("2026-01-01", "2026-01-02")
COMMITS, ROWS = 30, 10

pytestmark = pytest.mark.timeout(900)  # Maven and pip may have to download


@pytest.fixture
def table(tmp_path):
    """Commits before and after a checkpoint, a new column, and joined files."""
    made = open_or_create(
        tmp_path / "orders", FILE.append(pa.field("event_date", pa.date32())), ["event_date"]
    )
    for number in range(COMMITS):
        load(made, number, with_page=number >= COMMITS // 2)
        if number == COMMITS - 5:
            compact(made)
    return made


def load(table, number, *, with_page):
    schema = FILE.append(pa.field("page", pa.string())) if with_page else FILE
    files = PartitionedFiles(table.location, schema, str(number))
    for offset in range(number * ROWS, (number + 1) * ROWS):
        row = {"_topic_id": id_to_text(ID), "_partition": 0, "_offset": offset, "page": "/"}
        rows = pa.RecordBatch.from_pylist([row], schema)
        files.add((("event_date", DAYS[offset % 2]),), rows)
    span = Span(TopicPartition("orders", 0), ID, number * ROWS, (number + 1) * ROWS)
    whole = schema.append(pa.field("event_date", pa.date32()))
    assert table.commit(Batch((span,), files.finish(), whole, now_ms())) is Decision.COMMIT


def test_duckdb_reads_the_table_with_its_own_extension(table):
    connection = duckdb.connect()
    try:
        connection.execute("install delta; load delta")
    except (duckdb.IOException, duckdb.HTTPException) as unavailable:
        pytest.skip(f"DuckDB's extension delta is not available: {unavailable}")
    found = connection.execute(
        "select count(*), count(distinct (_topic_id, _partition, _offset)), count(page), "
        f"count(distinct event_date) from delta_scan('{table.location}')"
    ).fetchall()
    assert found == [(COMMITS * ROWS, COMMITS * ROWS, COMMITS * ROWS // 2, 2)]


def test_deltas_own_jar_reads_and_appends(table):
    if reason := delta_jar.missing():
        pytest.skip(f"Delta's jar {reason}")
    told = delta_jar.run(Path(__file__).parent / "count_delta.py", str(table.location))
    assert json.loads(told) == {
        "rows": COMMITS * ROWS,
        "distinct": COMMITS * ROWS,
        "pages": COMMITS * ROWS // 2,
        "days": list(DAYS),
    }
    # A commit of another program does not disturb the load.
    again = open_table(table.location)
    load(again, COMMITS, with_page=True)
    rows = DeltaTable(str(table.location)).to_pyarrow_table().num_rows
    assert rows == (COMMITS + 1) * ROWS + 1


def test_rclone_ignores_conditional_puts_and_is_refused(tmp_path):
    rclone = shutil.which("rclone")
    if rclone is None or subprocess.run([rclone, "serve", "s3", "--help"]).returncode:
        pytest.skip("needs rclone 1.65 or newer on the PATH")
    (tmp_path / "bucket").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [rclone, "serve", "s3", "--addr", address, "--auth-key", "test,test", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: _listens(address), 30)
            options = {
                "aws_endpoint_url": f"http://{address}",
                "aws_access_key_id": "test",
                "aws_secret_access_key": "test",
                "aws_region": "us-east-1",
                "aws_allow_http": "true",
            }
            with pytest.raises(LoadStopped, match="ignores conditional puts"):
                check_conditional_puts(parse_location("s3://bucket/views", options))
        finally:
            server.terminate()


def _listens(address):
    host, _, port = address.partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0
