"""JSON files of Kafka's tools that list partitions: ``{"partitions": [{"topic": …}, …]}``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cli import values


def read_entries(file: Path, fields: Mapping[str, type], example: str) -> list[dict[str, Any]]:
    """The entries of the file, each with ``fields``; ``example`` is shown if there are none."""
    try:
        document = json.loads(file.read_text())
    except OSError as failure:
        raise values.wrong(f"{file}: {failure.strerror}") from None
    except ValueError as failure:
        raise values.wrong(f"{file}: not a JSON document: {failure}") from None
    entries = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise values.wrong(f"{file}: expected a document such as {example}")
    for number, entry in enumerate(entries):
        _check(entry, fields, f"{file}: partitions[{number}]")
    return entries


def _check(entry: object, fields: Mapping[str, type], place: str) -> None:
    found: dict[str, Any] = entry if isinstance(entry, dict) else {}
    for name, kind in fields.items():
        if name not in found:
            raise values.wrong(f'{place} has no "{name}"')
        if type(found[name]) is not kind:
            expected = "a string" if kind is str else "an integer"
            raise values.wrong(f'{place}: "{name}" is {json.dumps(found[name])}, not {expected}')
