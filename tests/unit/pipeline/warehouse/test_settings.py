"""The settings of a load: what is refused by name before anything runs."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.pipeline.warehouse.rows import EventTime
from headrace.pipeline.warehouse.settings import LoadSettings, value_columns
from headrace.spark.failures import BadOption

JSON = {"value.format": "json", "value.schema": "user BIGINT, at TIMESTAMP, tags ARRAY<STRING>"}


def columns(source=JSON, **more):
    source = {"kafka.bootstrap.servers": "127.0.0.1:1", **source}
    settings = LoadSettings(("views",), Path("/nowhere"), source, **more)
    return value_columns(settings, settings.source_options())


def test_the_fields_of_a_value_become_columns():
    found = columns()
    assert found.is_struct and found.schema.names == ["user", "at", "tags"]
    assert all(field.nullable for field in found.schema)
    assert pa.types.is_struct(found.kind)


def test_raw_and_text_are_one_column():
    assert columns({}).schema == pa.schema([("value", pa.binary())])
    assert columns({"value.format": "string"}).schema == pa.schema([("value", pa.string())])


def test_required_avro_fields_become_nullable_columns():
    schema = '{"type":"record","name":"v","fields":[{"name":"user","type":"long"}]}'
    found = columns({"value.format": "avro", "value.schema": schema})
    assert found.schema == pa.schema([("user", pa.int64())])


def test_aborted_records_are_never_read():
    source = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    options = LoadSettings(("views",), Path("/nowhere"), source).source_options()
    assert options.fetch.read_committed and options.fetch.fail_on_data_loss


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"event_time": EventTime("when")}, "'when'; the fields of the value are user, at, tags"),
        ({"event_time": EventTime("tags")}, "use a TIMESTAMP, or a BIGINT"),
        ({"partition_by": ("country",)}, "'country'; use event_date, event_hour or one of user"),
        ({"partition_by": ("tags",)}, "use a text, a whole number"),
        ({"source": {"value.format": "json", "value.schema": "_offset BIGINT"}}, "'_offset'"),
        ({"source": {"value.format": "json", "value.schema": "Event_Date DATE"}}, "'Event_Date'"),
        ({"source": {}, "event_time": EventTime("at")}, "none, because it is raw"),
        ({"source": {}, "partition_by": ("value",)}, "use a text"),
    ],
)
def test_what_is_refused(more, reason):
    with pytest.raises(BadOption, match=reason):
        columns(**more)


def test_an_event_time_may_be_a_time_or_milliseconds():
    assert columns(event_time=EventTime("at")).schema.names[1] == "at"
    assert columns(event_time=EventTime("user")).schema.names[0] == "user"
