"""Random messages from a seed: what the codec tests feed to both sides."""

import random
from collections.abc import Iterator

from headrace.wire import schema
from headrace.wire.messages.tables import TABLES
from headrace.wire.schema import Definition, Field, Message

LIMITS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
WORDS = ("", "a", "orders", "clé", "日本語", "🐟", "x" * 127, "y" * 128, "z" * 300)


def every_message_and_version() -> Iterator[tuple[str, int]]:
    for name in TABLES:
        versions = schema.definition(name).versions
        for message_version in range(versions.first, versions.last + 1):
            yield name, message_version


class Values:
    """Draws messages of one version. Fields that the version lacks keep their defaults."""

    def __init__(self, name: str, message_version: int, seed: int) -> None:
        self.known: Definition = schema.definition(name)
        self.message_version = message_version
        self.random = random.Random(f"{name} {message_version} {seed}")
        self.outer = schema.message_class(name)

    def message(self) -> Message:
        return self.struct(self.known.name)

    def struct(self, struct_name: str) -> Message:
        is_outer = struct_name == self.known.name
        made: Message = (self.outer if is_outer else getattr(self.outer, struct_name))()
        for field in self.fields(struct_name):
            if field.tagged.includes(self.message_version) and self.random.random() < 0.4:
                continue  # a tagged field at its default is not written at all
            setattr(made, field.name, self.value(field))
        return made

    def fields(self, struct_name: str) -> list[Field]:
        """Those that this version carries, in the order of the definition."""
        fields = self.known.structs[struct_name]
        return [field for field in fields if field.versions.includes(self.message_version)]

    def value(self, field: Field) -> object:
        if field.nullable.includes(self.message_version) and self.random.random() < 0.3:
            return None
        if field.is_array:
            many = not field.is_struct and self.random.random() < 0.05
            count = 200 if many else self.random.choice((0, 1, 1, 2, 3))
            return [self.element(field) for _ in range(count)]
        return self.element(field)

    def element(self, field: Field) -> object:
        kind = field.element
        if field.is_struct:
            return self.struct(kind)
        if kind == "bool":
            return self.random.random() < 0.5
        if kind == "string":
            return self.random.choice(WORDS)
        if kind in ("bytes", "records"):
            return self.random.randbytes(self.random.choice((0, 1, 20, 127, 128, 400)))
        if kind == "uuid":
            return bytes(16) if self.random.random() < 0.2 else self.random.randbytes(16)
        if kind == "float64":
            return self.random.choice((0.0, -1.5, 1e300))
        if kind == "int16" and field.name.endswith("error_code"):
            return self.random.randint(-1, 100)  # kio refuses codes that it does not know
        least, most = LIMITS[kind]
        return self.random.choice(
            (0, 1, -1 if least else 1, least, most, self.random.randint(least, most))
        )


def encoded(message: Message, message_version: int) -> bytes:
    out = bytearray()
    schema.encoder(type(message), message_version)(message, out)
    return bytes(out)
