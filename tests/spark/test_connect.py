"""The same source and sink through Spark Connect."""

import pytest

from tests.spark.kit import run_where_read

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_source_and_sink_work_through_spark_connect(topics, connect, tmp_path):
    told = run_where_read(connect, topics, tmp_path)

    assert told["rows"] == 1000
