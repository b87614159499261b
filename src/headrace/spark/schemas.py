"""Avro schemas by ID, from a directory or a schema registry.

A directory holds one file per schema, named by its ID (``7.avsc`` or ``7.json``). A registry is
asked over HTTP, with the API of Confluent's registry: ``GET /schemas/ids/7``.
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import ClassVar

from headrace.arrow.avro_decoding import Node
from headrace.arrow.avro_schema import parse_schema
from headrace.arrow.errors import BadSchema
from headrace.spark.failures import BadOption, PipelineError

_ENDINGS = (".avsc", ".json")
_TIMEOUT_S = 30


class SchemaDirectory:
    """Schemas in files."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.place = str(self._path.absolute())
        if not self._path.is_dir():
            raise BadOption(f"value.avro.directory: {path!r} is not a directory on this machine")

    def text(self, schema_id: int) -> str | None:
        for ending in _ENDINGS:
            path = self._path / f"{schema_id}{ending}"
            if path.is_file():
                return path.read_text()
        return None

    def newest(self, topics: tuple[str, ...]) -> str:
        """The schema with the highest ID, for the columns of a query that names no schema."""
        numbers = [
            int(path.stem)
            for path in self._path.iterdir()
            if path.suffix in _ENDINGS and path.stem.isdecimal()
        ]
        if not numbers:
            raise BadOption(f"value.avro.directory: {self._path} has no file like 7.avsc")
        found = self.text(max(numbers))
        assert found is not None
        return found


class SchemaRegistry:
    """Schemas from a registry, over HTTP."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadOption(f"value.avro.registry must be like http://host:8081, not {address!r}")
        host = parts.hostname + (f":{parts.port}" if parts.port else "")
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self.place = self._base
        self._authorization = ""
        if parts.username is not None:
            name = urllib.parse.unquote(parts.username)
            pair = f"{name}:{urllib.parse.unquote(parts.password or '')}"
            self._authorization = "Basic " + base64.b64encode(pair.encode()).decode()

    def text(self, schema_id: int) -> str | None:
        return self._get(f"/schemas/ids/{schema_id}")

    def newest(self, topics: tuple[str, ...]) -> str:
        if len(topics) != 1:
            raise BadOption(
                "the query reads several topics, and the columns can come from the schema of only "
                "one: set value.schema, or give a schema with .schema(…)"
            )
        subject = urllib.parse.quote(f"{topics[0]}-value", safe="")
        found = self._get(f"/subjects/{subject}/versions/latest")
        if found is None:
            raise BadOption(f"value.avro.registry: {self._base} has no subject {topics[0]}-value")
        return found

    def _get(self, path: str) -> str | None:
        request = urllib.request.Request(self._base + path, headers={"Accept": "application/json"})
        if self._authorization:
            request.add_header("Authorization", self._authorization)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as refused:
            refused.close()
            if refused.code == 404:
                return None
            raise PipelineError(
                f"value.avro.registry: {self._base}{path}: HTTP {refused.code}"
            ) from refused
        except (OSError, ValueError) as failed:
            raise PipelineError(f"value.avro.registry: {self._base}{path}: {failed}") from failed
        if told.get("schemaType", "AVRO") != "AVRO":
            raise PipelineError(f"value.avro.registry: {self._base}{path} is {told['schemaType']}")
        text: str = told["schema"]
        return text


class KnownSchemas:
    """Schemas by ID, parsed once per process: an ID always names the same schema.

    A schema that cannot be used is replaced by the reason. The next task asks again for an ID
    that the source does not know.
    """

    _parsed: ClassVar[dict[tuple[str, int], Node]] = {}

    def __init__(self, source: SchemaDirectory | SchemaRegistry) -> None:
        self._source = source
        self._reasons: dict[int, str] = {}

    def get(self, schema_id: int) -> Node | str:
        found = self._parsed.get((self._source.place, schema_id)) or self._reasons.get(schema_id)
        if found is not None:
            return found
        text = self._source.text(schema_id)
        if text is None:
            return self._reasons.setdefault(schema_id, f"there is no schema {schema_id}")
        try:
            node = self._parsed[self._source.place, schema_id] = parse_schema(text)
        except BadSchema as unfit:
            return self._reasons.setdefault(schema_id, f"schema {schema_id}: {unfit}")
        return node


def schema_source(directory: str, registry: str) -> SchemaDirectory | SchemaRegistry | None:
    if directory and registry:
        raise BadOption("set value.avro.directory or value.avro.registry, not both")
    if directory:
        return SchemaDirectory(directory)
    return SchemaRegistry(registry) if registry else None
