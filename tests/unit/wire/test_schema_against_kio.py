"""Our bytes against kio's, for every message and version that kio knows, in both directions."""

import datetime
import io
import typing
import uuid
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pkgutil import resolve_name
from types import NoneType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

from headrace.wire import schema
from headrace.wire.schema import Field, Message
from tests.unit.wire.message_values import Values, encoded

ROUNDS = 3

# Message name -> version -> where kio keeps its class for it.
KIO_CLASSES: dict[str, dict[int, str]] = {}
for by_version in schema_name_map.values():
    for message_version, by_kind in by_version.items():
        for path in by_kind.values():
            KIO_CLASSES.setdefault(path.rpartition(":")[2], {})[message_version] = path


class KioValues(Values):
    """Draws only what kio can hold as well, and says it in kio's types.

    kio makes datetimes, durations and enums of some numbers, and None of the
    uuid that is all zeros.
    """

    def __init__(self, name: str, message_version: int, seed: int, kio_class: Any) -> None:
        super().__init__(name, message_version, seed)
        self.kio_class = kio_class

    def pair(self) -> tuple[Message, Any]:
        ours = self.message()
        return ours, self.to_kio(self.known.name, ours, self.kio_class)

    def to_kio(self, struct_name: str, ours: Message, kio_class: Any) -> Any:
        our_fields = self.fields(struct_name)
        kio_fields = dataclass_fields(kio_class)
        assert len(our_fields) == len(kio_fields), (struct_name, self.message_version)
        hints = typing.get_type_hints(kio_class)
        arguments = {}
        for field, kio_field in zip(our_fields, kio_fields, strict=True):
            # In kio's names durations lose their unit, and a builtin gets an underscore.
            assert field.name.startswith(kio_field.name.rstrip("_")), (field.name, kio_field.name)
            kind = kio_field.metadata.get("kafka_type", "struct")
            hint = hints[kio_field.name]
            self.keep_within(ours, field, kind, hint)
            value = getattr(ours, field.name)
            if isinstance(value, list):
                converted: Any = tuple(self.convert(field, kind, item, hint) for item in value)
            else:
                converted = self.convert(field, kind, value, hint)
            arguments[kio_field.name] = converted
        return kio_class(**arguments)

    def keep_within(self, ours: Message, field: Field, kind: str, hint: Any) -> None:
        """Replaces a number that kio's richer type could not hold."""
        if kind == "datetime_i64":
            seconds = self.random.choice((0, self.random.randint(1, 4_000_000_000)))
            is_none = NoneType in typing.get_args(hint) and self.random.random() < 0.3
            setattr(ours, field.name, -1 if is_none else seconds * 1000)
        elif kind == "timedelta_i64":
            setattr(ours, field.name, self.random.choice((-1, 0, 86_400_000, 2**40)))

    def convert(self, field: Field, kind: str, value: Any, hint: Any) -> Any:
        if value is None:
            return None
        if kind == "struct":
            return self.to_kio(field.element, value, _dataclass_in(hint))
        if kind == "error_code":
            return KioErrorCode(value)
        if kind == "uuid":
            return uuid.UUID(bytes=value) if any(value) else None
        if kind in ("timedelta_i32", "timedelta_i64"):
            return datetime.timedelta(milliseconds=value)
        if kind == "datetime_i64":
            if value == -1:
                return None
            return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        return value


def _dataclass_in(hint: Any) -> Any:
    """The struct's class out of ``tuple[Struct, ...] | None`` and the like."""
    if is_dataclass(hint):
        return hint
    found = (_dataclass_in(inner) for inner in typing.get_args(hint))
    return next((inner for inner in found if inner is not None), None)


@pytest.mark.parametrize("name", sorted(KIO_CLASSES))
def test_every_version_has_the_bytes_of_kio(name: str) -> None:
    for message_version, path in KIO_CLASSES[name].items():
        kio_class = resolve_name(path)
        write, read = entity_writer(kio_class), entity_reader(kio_class)
        for seed in range(ROUNDS):
            values = KioValues(name, message_version, seed, kio_class)
            ours, theirs = values.pair()

            buffer = io.BytesIO()
            write(buffer, theirs)
            their_bytes = buffer.getvalue()
            assert encoded(ours, message_version).hex() == their_bytes.hex()

            decode = schema.decoder(name, message_version)
            assert decode(their_bytes, 0, len(their_bytes)) == (ours, len(their_bytes))
            assert read(their_bytes, 0) == (theirs, len(their_bytes))


def test_kio_still_knows_the_expected_versions() -> None:
    """A newer kio must not silently drop versions."""
    assert sum(len(versions) for versions in KIO_CLASSES.values()) >= 625
