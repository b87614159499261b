"""The same source and sink on a real standalone cluster."""

import re

import pytest

from tests.spark.kit import run_where_read

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.long
def test_partitions_are_read_on_executors_of_a_cluster(topics, standalone, tmp_path):
    told = run_where_read(standalone.address, topics, tmp_path)

    assert told["rows"] == 1000
    # Executors run in the directory of their worker; the driver does not.
    folders = {re.search(r"/work(\d)/", place)[1] for place in told["places"]}
    assert folders == {"0", "1"}
