"""``headrace pipeline``: wrong usage, refused before Spark starts."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--once", "--every", "5s"], "--once or --every, not both"),
        (["--every", "often"], "--every 'often': expected a time"),
        (["--value", "xml"], "--value 'xml'"),
        (["--bad-max", "200%"], "--bad-max '200%'"),
        (["--schema", "@/nowhere/schema"], "/nowhere/schema"),
        (["--table", "s3://bucket/views"], "only directories are supported"),
    ],
)
def test_wrong_usage_of_load(headrace, arguments, reason, tmp_path):
    table = str(tmp_path / "t")
    ran = headrace("pipeline", "load", "views", "--table", table, *arguments, status=2)
    assert reason in ran.err and "Traceback" not in ran.err
    assert not (tmp_path / "t").exists()


def test_status_of_no_table(headrace, tmp_path):
    ran = headrace("pipeline", "status", "--table", str(tmp_path / "nothing"), status=1)
    assert "holds no Delta table" in ran.err
