"""Which views there are, and their names."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.pipeline.sql import find_views, view_name


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("page-views", "page_views"),
        ("raw/page-views", "raw_page_views"),
        ("raw/page-views/_dead_letters", "raw_page_views_dead_letters"),
        ("_dead_letters", "dead_letters"),
        ("Orders.v2", "orders_v2"),
    ],
)
def test_names_need_no_quotes(place, name):
    assert view_name(place) == name


def test_tables_and_topics_are_views(tmp_path):
    for place in ("feeds", "raw/page-views", "raw/page-views/_dead_letters"):
        write_deltalake(tmp_path / place, pa.table({"n": [1], "day": ["x"]}), partition_by="day")
    (tmp_path / "_pipelines" / "feed").mkdir(parents=True)
    found = find_views(tmp_path, ["page-views", "feeds", "alerts"])
    assert [(view.name, view.kind, view.place) for view in found.values()] == [
        ("feeds", "table", "feeds"),
        ("raw_page_views", "table", "raw/page-views"),
        ("raw_page_views_dead_letters", "table", "raw/page-views/_dead_letters"),
        ("alerts", "topic", "alerts"),
        ("topic_feeds", "topic", "feeds"),
        ("page_views", "topic", "page-views"),
    ]


def test_no_warehouse_is_no_table(tmp_path):
    assert find_views(tmp_path / "nothing", []) == {}
