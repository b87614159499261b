"""A load refuses a server of S3 that ignores conditional puts."""

import pytest

from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.conditional_puts import check_conditional_puts
from headrace.pipeline.warehouse.storage import location_of, parse_location
from tests.fakes.s3_server import new_url, s3_server

pytestmark = pytest.mark.slow


def test_a_server_that_ignores_them_is_refused():
    with (
        s3_server(ignore_conditions=True) as options,
        pytest.raises(LoadStopped, match="ignores conditional puts"),
    ):
        check_conditional_puts(parse_location(new_url(), options))


def test_a_server_that_honors_them_is_not_and_keeps_nothing():
    with s3_server() as options:
        location = parse_location(new_url(), options)
        check_conditional_puts(location)
        with pytest.raises(LoadStopped, match="cannot write to s3://no-such-bucket"):
            check_conditional_puts(parse_location("s3://no-such-bucket/a", options))


def test_a_directory_needs_no_server(tmp_path):
    check_conditional_puts(location_of(tmp_path / "views"))
    assert not (tmp_path / "views").exists()
