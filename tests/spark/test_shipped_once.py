"""Log lines that were shipped twice are one event in the warehouse, by the query of the docs."""

import re
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.pipeline.warehouse.spark_reader import read_table
from headrace.pipeline.warehouse.table import open_table
from tests.fakes.shipping import ShipperProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "shipping.md"


def query_of_the_page():
    (query,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return query


@pytest.fixture
def ship(topics, tmp_path):
    topic = topics.create("logs", 2)
    shipper = ShipperProcess(
        topics.bootstrap, tmp_path, tmp_path / "app.log", topic, "--once", "--key", "none"
    )

    def run():
        shipper.start()
        assert shipper.wait() == 0, shipper.log.read_text()
        return topic

    run.positions = shipper.state / "positions.json"
    yield run
    shipper.kill()


def test_lines_that_were_shipped_twice_count_once(spark, topics, ship, tmp_path):
    log = tmp_path / "app.log"
    lines = [f"line {number % 7}" for number in range(100)]  # equal lines are different events
    log.write_text("".join(f"{line}\n" for line in lines[:40]))
    ship()
    before = ship.positions.read_bytes()
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines[40:])
    ship()
    # Killed after the acknowledgements and before it saved its positions.
    ship.positions.write_bytes(before)
    topic = ship()
    topics.send(topic, ["not shipped", "not shipped"])

    table = tmp_path / "logs"
    source = {"kafka.bootstrap.servers": topics.bootstrap, "value.format": "string"}
    loader = Load(spark, LoadSettings((topic,), table, source))
    try:
        loader.once(lambda done: None)
    finally:
        loader.close()

    expected = sorted([*lines, "not shipped", "not shipped"])
    with duckdb.connect() as database:
        database.register("logs", DeltaTable(str(table)).to_pyarrow_dataset())
        assert database.sql("select count(*) from logs").fetchall() == [(162,)]
        rows = database.sql(query_of_the_page())
        assert sorted(rows.project("value").fetchall()) == [(line,) for line in expected]
    read_table(spark, open_table(table)).createOrReplaceTempView("logs")
    found = spark.sql(query_of_the_page()).collect()
    assert sorted(row.value for row in found) == expected
