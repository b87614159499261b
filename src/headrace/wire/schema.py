"""Classes, encoders and decoders from field tables, compiled per message and version on first use.

    decode = decoder(m.MetadataRequest, 12)    decode(buffer, position, end) -> message, position
    encode = encoder(m.MetadataResponse, 12)   encode(message, out) appends to a bytearray

A codec is one flat Python function: nested structs are inlined, adjacent fields of fixed width
share one ``struct`` call, and a length of one byte needs no loop. A field that a version lacks has
its default when decoded and is omitted when encoded, so a handler sees the same class for all
versions.

Guarantees of a decoder for untrusted bytes:

* It reads only ``buffer[position:end]``. It works on a slice, so other bytes of a pooled buffer
  are unreachable.
* It raises ``PeerBroken`` and nothing else.
* Time and memory are proportional to the frame. A count is checked against the bytes left, at the
  smallest possible width of an element, before memory is allocated.
"""

from collections.abc import Callable
from struct import Struct, error, pack, unpack_from
from typing import Any, NamedTuple, TypeVar, overload

from headrace.model.errors import PeerBroken
from headrace.wire.messages.tables import TABLES

Buffer = bytes | bytearray | memoryview

NO_LIMIT = 32767  # "3+" has no last version; API versions are int16

# The ``struct`` codes and sizes of the types of fixed width.
_FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}


class Versions(NamedTuple):
    """First and last version, both inclusive; empty if first > last."""

    first: int
    last: int

    def includes(self, api_version: int) -> bool:
        return self.first <= api_version <= self.last


class Field(NamedTuple):
    name: str
    element: str  # the type; of an array, the type of its elements
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str  # as in the table; "" is the zero value of the type
    legacy: bool  # keeps the old string encoding in flexible versions

    @property
    def is_struct(self) -> bool:
        return self.element[0].isupper()


class Definition(NamedTuple):
    """One message, from its table; the message itself is the struct ``name``."""

    name: str
    kind: str
    api_key: int  # of a request or response, the record type of an internal topic, else -1
    versions: Versions
    flexible: Versions
    structs: dict[str, list[Field]]


class Message:
    """The base of all messages and structs: equality by fields, and a readable form."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]  # fields can change

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


Decoder = Callable[[Buffer, int, int], tuple[Any, int]]
Encoder = Callable[[Any, bytearray], None]
MessageT = TypeVar("MessageT", bound=Message)

_NEVER = Versions(0, -1)
_definitions: dict[str, Definition] = {}
_classes: dict[str, type[Message]] = {}
_decoders: dict[tuple[object, int], Decoder] = {}
_encoders: dict[tuple[object, int], Encoder] = {}


@overload
def decoder(
    message: type[MessageT], api_version: int
) -> Callable[[Buffer, int, int], tuple[MessageT, int]]: ...
@overload
def decoder(message: str, api_version: int) -> Decoder: ...
def decoder(message: type[Message] | str, api_version: int) -> Decoder:
    """The decoder of one version of a message. Raises LookupError if there is none."""
    found = _decoders.get((message, api_version))
    if found is None:
        found = DecoderSource(*_checked(message, api_version)).compiled()
        _decoders[message, api_version] = found
    return found


@overload
def encoder(message: type[MessageT], api_version: int) -> Callable[[MessageT, bytearray], None]: ...
@overload
def encoder(message: str, api_version: int) -> Encoder: ...
def encoder(message: type[Message] | str, api_version: int) -> Encoder:
    """The encoder of one version of a message. Raises LookupError if there is none."""
    found = _encoders.get((message, api_version))
    if found is None:
        found = _EncoderSource(*_checked(message, api_version)).compiled()
        _encoders[message, api_version] = found
    return found


def _checked(message: type[Message] | str, api_version: int) -> tuple[Definition, int]:
    known = definition(message if isinstance(message, str) else message.__name__)
    if not known.versions.includes(api_version):
        raise LookupError(f"{known.name} has no version {api_version}")
    return known, api_version


# From text to definitions.


def definition(name: str) -> Definition:
    found = _definitions.get(name)
    if found is None:
        found = _definitions[name] = _parse_table(name, TABLES[name])
    return found


def _parse_table(name: str, table: str) -> Definition:
    head, *lines = table.splitlines()
    kind, api_key, versions, _, flexible = head.split()
    structs: dict[str, list[Field]] = {name: []}
    fields = structs[name]
    for line in lines:
        if line.endswith(":"):
            fields = structs[line[:-1]] = []
        else:
            fields.append(_parse_field(line))
    return Definition(
        name,
        kind,
        -1 if api_key == "-" else int(api_key),
        _parse_versions(versions),
        _parse_versions(flexible),
        structs,
    )


def _parse_versions(text: str) -> Versions:
    if text == "none":
        return _NEVER
    if text.endswith("+"):
        return Versions(int(text[:-1]), NO_LIMIT)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def _parse_field(line: str) -> Field:
    name, kind, versions, *rest = line.split()
    nullable = tagged = _NEVER
    tag = -1
    default = ""
    legacy = False
    words = iter(rest)
    for word in words:
        if word == "null":
            nullable = _parse_versions(next(words))
        elif word == "tag":
            tag = int(next(words))
            tagged = _parse_versions(next(words))
        elif word == "legacy":
            legacy = True
        else:
            assert word == "=", line
            default = next(words)
    return Field(
        name,
        kind.removeprefix("[]"),
        kind.startswith("[]"),
        _parse_versions(versions),
        nullable,
        tagged,
        tag,
        default,
        legacy,
    )


# From definitions to classes.


def message_class(name: str) -> type[Message]:
    """The class of a message; its structs are its attributes, under Kafka's names."""
    found = _classes.get(name)
    if found is None:
        # Several brokers of a test process run on different threads. A codec may be built twice,
        # but objects of two classes would never be equal. setdefault is atomic, so the first
        # class stays.
        found = _classes.setdefault(name, _build_class(definition(name)))
    return found


def _default_source(field: Field) -> str:
    """An expression for the default of a field; a new object each time if it is mutable."""
    if field.default == "null":
        return "None"
    if field.is_array:
        return "[]"
    if field.is_struct:
        return f"{field.element}()"
    if field.element == "bool":
        return "True" if field.default == "true" else "False"
    if field.element == "string":
        return repr(field.default)
    if field.element in ("bytes", "records"):
        return "b''"
    if field.element == "uuid":
        return "NO_UUID"
    if field.element == "float64":
        return field.default or "0.0"
    return field.default or "0"


def _build_class(known: Definition) -> type[Message]:
    lines = []
    for struct_name, fields in known.structs.items():
        # A mutable default would be shared; UNSET means a new one.
        parameters = []
        body = []
        for field in fields:
            default = _default_source(field)
            if default[-1] in "])":
                parameters.append(f"{field.name}=UNSET")
                default = f"{default} if {field.name} is UNSET else {field.name}"
                body.append(f"    self.{field.name} = {default}")
            else:
                parameters.append(f"{field.name}={default}")
                body.append(f"    self.{field.name} = {field.name}")
        head = f"def init_{struct_name}(self{', *' if fields else ''}"
        lines += [", ".join([head, *parameters]) + "):", *(body or ["    pass"])]
    names: dict[str, Any] = {"UNSET": object(), "NO_UUID": bytes(16)}
    exec(compile("\n".join(lines), f"<{known.name}>", "exec"), names)
    outer: type[Message] | None = None
    for struct_name, fields in known.structs.items():
        attributes = {
            "__slots__": tuple(field.name for field in fields),
            "__init__": names[f"init_{struct_name}"],
            "__module__": "headrace.wire.messages",
            "__qualname__": struct_name if outer is None else f"{known.name}.{struct_name}",
        }
        built = type(struct_name, (Message,), attributes)
        names[struct_name] = built
        if outer is None:
            outer = built
        else:
            setattr(outer, struct_name, built)
    assert outer is not None
    return outer


# From definitions to codecs.


class _Source:
    """The source lines of a generated function, and the names that they use.

    ``run`` has the adjacent fields of fixed width that are not emitted yet: their ``struct`` codes,
    and the expressions to pack or targets to unpack into.
    """

    def __init__(self, known: Definition, api_version: int) -> None:
        self.known = known
        self.api_version = api_version
        self.flexible = known.flexible.includes(api_version)
        self.indent = 1
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "NO_UUID": bytes(16),
            "pack": pack,
            "unpack_from": unpack_from,
        }
        self.run: list[tuple[str, str]] = []
        self.counter = 0
        outer = message_class(known.name)
        for struct_name in known.structs:
            is_outer = struct_name == known.name
            self.names[struct_name] = outer if is_outer else getattr(outer, struct_name)

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.indent + line for line in lines]

    def unique(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def is_flexible(self, field: Field) -> bool:
        return self.flexible and not field.legacy

    def is_nullable(self, field: Field) -> bool:
        return field.nullable.includes(self.api_version)

    def present(self, fields: list[Field]) -> tuple[list[Field], list[Field], list[Field]]:
        """Fields on the wire in order, tagged fields by tag, and fields not in this version."""
        plain, tagged, absent = [], [], []
        for field in fields:
            if not field.versions.includes(self.api_version):
                absent.append(field)
            elif self.flexible and field.tagged.includes(self.api_version):
                tagged.append(field)
            else:
                plain.append(field)
        return plain, sorted(tagged, key=lambda field: field.tag), absent

    def compiled(self) -> Any:
        kind = type(self).__name__.strip("_").removesuffix("Source").lower()
        name = f"<{kind} of {self.known.name} {self.api_version}>"
        exec(compile("\n".join(self.lines), name, "exec"), self.names)
        return self.names["run"]

    def struct_method(self, codes: str, method: str) -> str:
        """The name of ``Struct(codes).pack`` (or another method) in the function."""
        name = f"{method}_{codes.replace('?', 'y')}"  # "?" is not valid in a name
        self.names[name] = getattr(_struct(codes), method)
        return name


_structs: dict[str, Struct] = {}


def _struct(codes: str) -> Struct:
    found = _structs.get(codes)
    if found is None:
        found = _structs[codes] = Struct(">" + codes)
    return found


class DecoderSource(_Source):
    """Generates a decoder. In its source, ``d`` is the data, ``p`` the position, ``end`` exclusive.

    Reading a number or a byte beyond the data raises an error that the ``except`` at the end of the
    function turns into ``PeerBroken``. Slices do not raise, so their ends are checked first.
    """

    def __init__(self, known: Definition, api_version: int) -> None:
        super().__init__(known, api_version)
        self.names |= {
            "PeerBroken": PeerBroken,
            "BEYOND": (error, IndexError),
            "ERRORS": (UnicodeDecodeError, OverflowError),
            "new": object.__new__,
            "longer": _longer_uvarint,
            "uvarint": read_uvarint,
            "skip_tags": _skip_tags,
            "SHORT": f"{known.name} version {api_version}, truncated",
            "NULL": f"{known.name} version {api_version} with null in a field that is not nullable",
            "TAG": f"{known.name} version {api_version} with a tagged field of the wrong size",
        }
        # Records must stay in the buffer. Everything else is small, and a bytes object is the
        # fastest to decode.
        self.keeps_views = any(
            field.element == "records" for fields in known.structs.values() for field in fields
        )
        self.lines.append("def run(buffer, position, end):")
        self.emit("try:")
        self.indent = 2
        view = "memoryview(buffer)[position:end]"
        self.emit(f"d = {view}" if self.keeps_views else f"d = bytes({view})")
        self.emit("p = 0", "end = len(d)", f"o = new({known.name})")
        self.read_struct("o", known.structs[known.name])
        self.flush()
        self.emit("return o, position + p")
        self.indent = 1
        self.emit("except BEYOND as broken:", "    raise PeerBroken(SHORT) from broken")
        self.emit("except ERRORS as broken:")
        what = f"{known.name} version {api_version}"
        self.emit(f"    raise PeerBroken(f'{what}: {{broken}}') from broken")

    def flush(self) -> None:
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = [target for _, target in self.run]
        self.run = []
        size = _struct(codes).size
        if codes == "B":
            self.emit(f"{targets[0]} = d[p]")
        else:
            reader = self.struct_method(codes, "unpack_from")
            comma = "," if len(targets) == 1 else ""
            self.emit(f"{', '.join(targets)}{comma} = {reader}(d, p)")
        self.emit(f"p += {size}")

    def read_struct(self, target: str, fields: list[Field]) -> None:
        plain, tagged, absent = self.present(fields)
        for field in absent + tagged:
            self.emit(f"{target}.{field.name} = {_default_source(field)}")
        for field in plain:
            self.read_field(f"{target}.{field.name}", field)
        if self.flexible:
            self.read_tags(target, tagged)

    def read_field(self, target: str, field: Field) -> None:
        if field.is_array:
            self.read_array(target, field)
        elif field.is_struct:
            self.read_nested(target, field)
        elif field.element in _FIXED:
            self.run.append((_FIXED[field.element][0], target))
        else:
            wide = field.element != "string"
            self.read_sized(target, field, self.is_nullable(field), "i" if wide else "h")

    def read_length(self, code: str, flexible: bool) -> None:
        """Put the length into ``n``: compact lengths plus 1, others with -1 for null."""
        self.run.append(("B" if flexible else code, "n"))
        self.flush()
        if flexible:
            self.emit("if n > 127: n, p = longer(d, p, n)")

    def read_null(self, target: str, nullable: bool, flexible: bool) -> None:
        """The branch after ``if`` there is a length: null, or an error."""
        if not nullable:
            self.emit("else:", "    raise PeerBroken(NULL)")
        elif flexible:
            self.emit("else:", f"    {target} = None")
        else:
            self.emit("elif n == -1:", f"    {target} = None")
            self.emit("else:", "    raise PeerBroken(NULL)")

    def read_sized(self, target: str, field: Field, nullable: bool, code: str) -> None:
        flexible = self.is_flexible(field)
        self.read_length(code, flexible)
        self.emit("if n:" if flexible else "if n >= 0:")
        self.emit("    q = p + n - 1" if flexible else "    q = p + n")
        self.emit("    if q > end: raise PeerBroken(SHORT)")
        if field.element == "records":
            value = "d[p:q]"
        elif field.element == "bytes":
            value = "bytes(d[p:q])" if self.keeps_views else "d[p:q]"
        else:
            value = "str(d[p:q], 'utf-8')" if self.keeps_views else "d[p:q].decode()"
        self.emit(f"    {target} = {value}", "    p = q")
        self.read_null(target, nullable, flexible)

    def read_nested(self, target: str, field: Field) -> None:
        inner = self.unique("o")
        fields = self.known.structs[field.element]
        if not self.is_nullable(field):
            self.emit(f"{inner} = {target} = new({field.element})")
            self.read_struct(inner, fields)
            return
        self.run.append(("b", "n"))
        self.flush()
        self.emit("if n == 1:")
        self.indent += 1
        self.emit(f"{inner} = {target} = new({field.element})")
        self.read_struct(inner, fields)
        self.flush()
        self.indent -= 1
        # In a tagged field this is an unsigned varint, otherwise a signed byte.
        null = 0 if field.tagged.includes(self.api_version) else -1
        self.emit(f"elif n == {null}:", f"    {target} = None")
        self.emit("else:", "    raise PeerBroken(NULL)")

    def read_array(self, target: str, field: Field) -> None:
        flexible = self.is_flexible(field)
        self.read_length("i", flexible)
        self.emit("if n:" if flexible else "if n >= 0:")
        self.indent += 1
        if flexible:
            self.emit("n -= 1")
        # Elements of zero bytes would allow a count of billions.
        width = max(1, self.width_of_element(field))
        self.emit(f"q = p + n * {width}" if width > 1 else "q = p + n")
        self.emit("if q > end: raise PeerBroken(SHORT)")
        if field.element == "uuid":
            piece = "bytes(d[i:i + 16])" if self.keeps_views else "d[i:i + 16]"
            self.emit(f"{target} = [{piece} for i in range(p, q, 16)]", "p = q")
        elif field.element in _FIXED:
            code = _FIXED[field.element][0]
            self.emit(f"{target} = list(unpack_from(f'>{{n}}{code}', d, p))", "p = q")
        else:
            items, inner = self.unique("a"), self.unique("o")
            self.emit(f"{items} = {target} = []", "for _ in range(n):")
            self.indent += 1
            if field.is_struct:
                self.emit(f"{inner} = new({field.element})")
                self.read_struct(inner, self.known.structs[field.element])
                self.flush()
            else:
                self.read_sized(inner, field, False, "h" if field.element == "string" else "i")
            self.emit(f"{items}.append({inner})")
            self.indent -= 1
        self.indent -= 1
        self.read_null(target, self.is_nullable(field), flexible)

    def read_tags(self, target: str, tagged: list[Field]) -> None:
        self.run.append(("B", "n"))
        self.flush()
        if not tagged:
            self.emit("if n: p = skip_tags(d, p, n)")
            return
        tag_end = self.unique("e")
        self.emit("if n:")
        self.indent += 1
        self.emit("if n > 127: n, p = longer(d, p, n)", "for _ in range(n):")
        self.indent += 1
        self.emit("tag, p = uvarint(d, p)", "n, p = uvarint(d, p)", f"{tag_end} = p + n")
        self.emit(f"if {tag_end} > end: raise PeerBroken(SHORT)")
        for place, field in enumerate(tagged):
            self.emit(f"{'elif' if place else 'if'} tag == {field.tag}:")
            self.indent += 1
            self.read_field(f"{target}.{field.name}", field)
            self.flush()
            self.indent -= 1
        self.emit("else:", f"    p = {tag_end}")
        self.emit(f"if p != {tag_end}: raise PeerBroken(TAG)")
        self.indent -= 2

    def width_of_element(self, field: Field) -> int:
        if field.element in _FIXED:
            return _FIXED[field.element][1]
        if field.is_struct:
            return self.width_of_struct(self.known.structs[field.element])
        return 1 if self.is_flexible(field) else 2 if field.element == "string" else 4

    def width_of_struct(self, fields: list[Field]) -> int:
        """The minimum size of a struct in this version."""
        plain, _, _ = self.present(fields)
        width = 1 if self.flexible else 0
        for field in plain:
            if field.is_array:
                width += 1 if self.is_flexible(field) else 4
            elif field.is_struct and self.is_nullable(field):
                width += 1
            else:
                width += self.width_of_element(field)
        return width


def _longer_uvarint(data: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint of several bytes."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise PeerBroken("a varint with more than 5 bytes")


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    first = data[position]
    if first < 0x80:
        return first, position + 1
    return _longer_uvarint(data, position + 1, first)


def _skip_tags(data: Buffer, position: int, first: int) -> int:
    """The position after unknown tagged fields; ``first`` is the first byte of their count."""
    count = first
    if first > 127:
        count, position = _longer_uvarint(data, position, first)
    end = len(data)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > end:
            raise PeerBroken("a truncated tagged field")
    return position


def skip_all_tags(data: Buffer) -> int:
    """The size of the tagged fields at the start of ``data``."""
    try:
        return _skip_tags(data, 1, data[0])
    except IndexError as broken:
        raise PeerBroken("truncated tagged fields") from broken


class _EncoderSource(_Source):
    """Generates an encoder. Its source appends to ``out`` (or to a ``t…`` for a tagged field)."""

    def __init__(self, known: Definition, api_version: int) -> None:
        super().__init__(known, api_version)
        self.names |= {"put_uvarint": put_uvarint}
        self.out = "out"
        self.lines.append("def run(o, out):")
        self.write_struct("o", known.structs[known.name])
        self.flush()
        # The function needs a body even if this version has no fields.
        self.emit("return None")

    def flush(self) -> None:
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        values = [value for _, value in self.run if value]
        self.run = []
        if codes in ("x", "B"):
            self.emit(f"{self.out}.append({values[0] if values else 0})")
        else:
            self.emit(f"{self.out} += {self.struct_method(codes, 'pack')}({', '.join(values)})")

    def write_struct(self, source: str, fields: list[Field]) -> None:
        plain, tagged, _ = self.present(fields)
        for field in plain:
            self.write_field(f"{source}.{field.name}", field)
        if tagged:
            self.write_tags(source, tagged)
        elif self.flexible:
            self.run.append(("x", ""))  # no tagged fields: one zero byte

    def write_field(self, source: str, field: Field) -> None:
        if field.is_array:
            self.write_array(source, field)
        elif field.is_struct:
            self.write_nested(source, field)
        elif field.element in _FIXED:
            self.run.append((_FIXED[field.element][0], source))
        else:
            self.write_sized(source, field, self.is_nullable(field))

    def write_length(self, code: str, flexible: bool) -> None:
        """Write ``n`` together with the pending run of fields."""
        if not flexible:
            self.run.append((code, "n"))
            self.flush()
            return
        before = list(self.run)
        self.emit("if n < 128:")
        self.indent += 1
        self.run = [*before, ("B", "n")]
        self.flush()
        self.indent -= 1
        self.emit("else:")
        self.indent += 1
        self.run = before
        self.flush()
        self.emit(f"put_uvarint({self.out}, n)")
        self.indent -= 1

    def write_sized(self, source: str, field: Field, nullable: bool) -> None:
        flexible = self.is_flexible(field)
        is_string = field.element == "string"
        count = "len(b) + 1" if flexible else "len(b)"
        if nullable:
            self.emit(f"b = {source}", "if b is None:", f"    n = {0 if flexible else -1}")
            self.emit("    b = b''", "else:")
            if is_string:
                self.emit("    b = b.encode()")
            self.emit(f"    n = {count}")
        else:
            self.emit(f"b = {source}{'.encode()' if is_string else ''}", f"n = {count}")
        self.write_length("h" if is_string else "i", flexible)
        self.emit(f"{self.out} += b")

    def write_nested(self, source: str, field: Field) -> None:
        inner = self.unique("o")
        self.emit(f"{inner} = {source}")
        fields = self.known.structs[field.element]
        if not self.is_nullable(field):
            self.write_struct(inner, fields)
            return
        self.flush()
        null = 0 if field.tagged.includes(self.api_version) else 255
        self.emit(f"if {inner} is None:", f"    {self.out}.append({null})", "else:")
        self.indent += 1
        self.emit(f"{self.out}.append(1)")
        self.write_struct(inner, fields)
        self.flush()
        self.indent -= 1

    def write_array(self, source: str, field: Field) -> None:
        flexible = self.is_flexible(field)
        items = self.unique("a")
        self.emit(f"{items} = {source}")
        if self.is_nullable(field):
            null = 0 if flexible else -1
            self.emit(f"if {items} is None:", f"    n = {null}", f"    {items} = ()", "else:")
            self.emit(f"    n = len({items}){' + 1' if flexible else ''}")
        else:
            self.emit(f"n = len({items}){' + 1' if flexible else ''}")
        self.write_length("i", flexible)
        if field.element == "uuid":
            self.emit(f"{self.out} += b''.join({items})")
        elif field.element in _FIXED:
            code = _FIXED[field.element][0]
            packers = f"packers_{code}"
            self.names[packers] = _short_array_packers(code)
            self.emit(f"n = len({items})", f"if n < {_SHORT_ARRAY}:")
            self.emit(f"    {self.out} += {packers}[n](*{items})", "else:")
            self.emit(f"    {self.out} += pack(f'>{{n}}{code}', *{items})")
        else:
            inner = self.unique("o")
            self.emit(f"for {inner} in {items}:")
            self.indent += 1
            if field.is_struct:
                self.write_struct(inner, self.known.structs[field.element])
                self.flush()
            else:
                self.write_sized(inner, field, False)
            self.indent -= 1

    def write_tags(self, source: str, tagged: list[Field]) -> None:
        """Write the tagged fields that differ from their defaults, in the order of their tags."""
        self.flush()
        conditions = [self.differs(f"{source}.{field.name}", field) for field in tagged]
        self.emit(f"n = {' + '.join(f'({condition})' for condition in conditions)}")
        self.emit(f"{self.out}.append(n)", "if n:")
        self.indent += 1
        around = self.out
        for condition, field in zip(conditions, tagged, strict=True):
            self.emit(f"if {condition}:")
            self.indent += 1
            self.out = self.unique("t")
            self.emit(f"{self.out} = bytearray()")
            self.write_field(f"{source}.{field.name}", field)
            self.flush()
            self.emit(f"{around}.append({field.tag})", f"put_uvarint({around}, len({self.out}))")
            self.emit(f"{around} += {self.out}")
            self.indent -= 1
            self.out = around
        self.indent -= 1

    def differs(self, source: str, field: Field) -> str:
        """A condition that is true if the field must be written."""
        if field.default == "null":
            return f"{source} is not None"
        if field.is_struct and not field.is_array:
            # Field by field: comparing objects, for three such fields in each partition of a Fetch
            # response, would cost more than all the rest.
            inner = self.unique("c")
            null = f"({inner} := {source}) is None" if field.nullable != _NEVER else ""
            parts = [
                self.differs(f"{inner}.{other.name}", other)
                for other in self.known.structs[field.element]
            ]
            if not null:
                self.emit(f"{inner} = {source}")
            return " or ".join([null, *parts] if null else parts)
        return f"{source} != {_default_source(field)}"


_SHORT_ARRAY = 9  # most arrays of numbers are replica lists
_array_packers: dict[str, list[Callable[..., bytes]]] = {}


def _short_array_packers(code: str) -> list[Callable[..., bytes]]:
    found = _array_packers.get(code)
    if found is None:
        found = [Struct(f">{count}{code}").pack for count in range(_SHORT_ARRAY)]
        _array_packers[code] = found
    return found


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint: seven bits per byte, lowest first."""
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
