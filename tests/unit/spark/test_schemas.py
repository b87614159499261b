"""Avro schemas by ID, from a directory and from a registry over HTTP."""

import base64
import http.server
import json
import threading

import pytest

from headrace.arrow.avro_decoding import Node
from headrace.spark.failures import BadOption, PipelineError
from headrace.spark.schemas import KnownSchemas, SchemaDirectory, SchemaRegistry, schema_source

RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


class Registry(http.server.BaseHTTPRequestHandler):
    answers = {
        "/base/schemas/ids/7": (200, {"schema": RECORD}),
        "/base/schemas/ids/8": (200, {"schema": "message M {}", "schemaType": "PROTOBUF"}),
        "/base/schemas/ids/9": (500, {"message": "broken"}),
        "/base/subjects/clicks-value/versions/latest": (200, {"id": 7, "schema": RECORD}),
    }
    seen: list = []

    def do_GET(self):
        Registry.seen.append((self.path, self.headers.get("Authorization")))
        status, body = self.answers.get(self.path, (404, {"error_code": 40403}))
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *words):
        """Log nothing."""


@pytest.fixture
def address():
    Registry.seen = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield f"127.0.0.1:{server.server_port}/base"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_registry_is_asked_once_for_each_id(address):
    known = KnownSchemas(SchemaRegistry(f"http://{address}/"))

    assert known.get(7) is known.get(7)
    assert known.get(404) == known.get(404) == "there is no schema 404"
    assert KnownSchemas(SchemaRegistry(f"http://{address}")).get(7) is known.get(7)
    assert [path for path, _ in Registry.seen] == ["/base/schemas/ids/7", "/base/schemas/ids/404"]


def test_name_and_password_of_the_address_are_sent(address):
    SchemaRegistry(f"http://ann:p%40ss@{address}").text(7)

    assert Registry.seen[0][1] == "Basic " + base64.b64encode(b"ann:p@ss").decode()


def test_the_columns_come_from_the_topics_latest_schema(address):
    registry = SchemaRegistry(f"http://{address}")

    assert registry.newest(("clicks",)) == RECORD
    with pytest.raises(BadOption, match="no subject views-value"):
        registry.newest(("views",))
    with pytest.raises(BadOption, match="set value.schema"):
        registry.newest(("clicks", "views"))


@pytest.mark.parametrize(("number", "reason"), [(8, "PROTOBUF"), (9, "HTTP 500")])
def test_an_error_of_the_registry_fails_the_query_and_makes_no_record_bad(address, number, reason):
    with pytest.raises(PipelineError, match=reason):
        SchemaRegistry(f"http://{address}").text(number)


def test_a_registry_that_does_not_answer_is_named():
    with pytest.raises(PipelineError, match="127.0.0.1:1"):
        SchemaRegistry("http://127.0.0.1:1").text(7)


def test_a_missing_schema_is_looked_for_again_by_the_next_task(tmp_path):
    schemas = SchemaDirectory(str(tmp_path))
    assert KnownSchemas(schemas).get(3) == "there is no schema 3"

    (tmp_path / "3.avsc").write_text(RECORD)
    (tmp_path / "12.json").write_text('"string"')

    assert isinstance(KnownSchemas(schemas).get(3), Node)
    assert schemas.newest(()) == '"string"'


@pytest.mark.parametrize(
    ("directory", "registry", "reason"),
    [
        ("nowhere", "", "is not a directory"),
        ("", "ftp://x", "must be like http"),
        ("a", "b", "not both"),
    ],
)
def test_a_wrong_source_is_refused_by_the_name_of_its_option(directory, registry, reason):
    with pytest.raises(BadOption, match=reason):
        schema_source(directory, registry)


def test_an_empty_directory_has_no_newest_schema(tmp_path):
    with pytest.raises(BadOption, match="no file like 7.avsc"):
        SchemaDirectory(str(tmp_path)).newest(())
