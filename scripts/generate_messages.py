"""Write the field tables in ``wire/messages`` from the definitions in Apache Kafka's jars.

    python scripts/generate_messages.py --newest 4.3.1/jars --older 3.9.1/jars

Each argument is a directory with Kafka's jars, which have the version in their names. The newest
release defines a message; the older one adds the versions that the newest has removed, so that one
class covers all versions. A merged table is written only if every version of it equals the original
definition.

The tables contain only facts about the protocol: names, types, version ranges, defaults.
"""

import argparse
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NO_LIMIT = 32767  # "3+" has no last version; API versions are int16
PACKAGE = Path(__file__).parent.parent / "src" / "headrace" / "wire" / "messages"

# Requests and responses, the records of the internal topics, and the .snapshot files.
NEWEST_ARTIFACTS = (
    "kafka-clients",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
    "kafka-storage",
)
# Old versions matter only for requests of old clients; records use their newest definition.
OLDER_ARTIFACTS = ("kafka-clients",)
# Tiered storage, which is not supported.
SKIPPED = re.compile(r"RemoteLog|RemotePartition")

PYTHON_TYPES = {
    "bool": "bool",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
    "uuid": "bytes",
    "float64": "float",
}
NUMBERS = {"int8", "int16", "int32", "int64", "uint16", "uint32"}


@dataclass(frozen=True, order=True)
class Versions:
    """First and last version, both inclusive; empty if first > last."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), NO_LIMIT)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, api_version: int) -> bool:
        return self.first <= api_version <= self.last

    def __bool__(self) -> bool:
        return self.first <= self.last

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.last == NO_LIMIT:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def all(self) -> range:
        return range(self.first, self.last + 1)


NEVER = Versions(0, -1)


@dataclass(frozen=True)
class Field:
    name: str
    type: str  # with "[]" in front for an array
    versions: Versions
    nullable: Versions = NEVER
    tagged: Versions = NEVER
    tag: int | None = None
    default: str = ""  # as in the definition; "" is the zero value of the type
    legacy: bool = False  # keeps the old string encoding in flexible versions

    @property
    def element(self) -> str:
        return self.type.removeprefix("[]")

    @property
    def is_struct(self) -> bool:
        return self.element[0].isupper()

    def line(self) -> str:
        words = [self.name, self.type, str(self.versions)]
        if self.nullable:
            words += ["null", str(self.nullable)]
        if self.tagged:
            words += ["tag", str(self.tag), str(self.tagged)]
        if self.legacy:
            words += ["legacy"]
        if self.default:
            words += ["=", self.default]
        return " ".join(words)


@dataclass
class Message:
    name: str
    kind: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    fields: list[Field]
    structs: dict[str, list[Field]] = field(default_factory=dict)


def snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.lower()


def parse_default(spec: dict[str, Any]) -> str:
    # Kafka's generator treats JSON's null as "no default"; only the string "null" makes the default
    # null.
    default = str(spec["default"]) if spec.get("default") is not None else ""
    if default.lower() in ("true", "false"):
        default = default.lower()
    elif spec["type"] in NUMBERS and default:
        default = str(int(default, 0))
    zero = {"bool": "false", "float64": "0"}.get(spec["type"], "0")
    return "" if default == zero else default


def parse_fields(specs: list[dict[str, Any]], structs: dict[str, list[Field]]) -> list[Field]:
    fields = []
    for spec in specs:
        tagged = Versions.parse(spec.get("taggedVersions", "none"))
        parsed = Field(
            name=snake_case(spec["name"]),
            type=spec["type"],
            versions=Versions.parse(spec["versions"]) if "versions" in spec else tagged,
            nullable=Versions.parse(spec.get("nullableVersions", "none")),
            tagged=tagged,
            tag=spec.get("tag"),
            default=parse_default(spec),
            legacy=spec.get("flexibleVersions") == "none",
        )
        if "fields" in spec:
            structs[parsed.element] = parse_fields(spec["fields"], structs)
        fields.append(parsed)
    return fields


def parse_message(text: str) -> Message:
    spec = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    structs: dict[str, list[Field]] = {}
    fields = parse_fields(spec.get("fields", []), structs)
    for shared in spec.get("commonStructs", []):
        structs[shared["name"]] = parse_fields(shared["fields"], structs)
    return Message(
        name=spec["name"],
        kind=spec["type"],
        api_key=spec.get("apiKey"),
        versions=Versions.parse(spec["validVersions"]),
        flexible=Versions.parse(spec.get("flexibleVersions", "none")),
        fields=fields,
        structs=structs,
    )


def messages_of(
    directory: Path, artifacts: tuple[str, ...], sources: list[str]
) -> dict[str, Message]:
    found: dict[str, Message] = {}
    for jar in sorted(directory.glob("kafka-*.jar")):
        artifact = re.sub(r"-\d[\w.]*\.jar$", "", jar.name)
        if artifact not in artifacts:
            continue
        sources.append(jar.name)
        with zipfile.ZipFile(jar) as archive:
            for entry in sorted(archive.namelist()):
                if not re.search(r"(^|/)message/\w+\.json$", entry) or SKIPPED.search(entry):
                    continue
                message = parse_message(archive.read(entry).decode())
                assert message.name not in found, f"{message.name} is defined twice"
                found[message.name] = message
    return found


def reading(message: Message, fields: list[Field], api_version: int) -> Iterator[tuple[Any, ...]]:
    """The fields of one version of a message in wire order, with structs inlined."""
    flexible = api_version in message.flexible
    for item in fields:
        if api_version not in item.versions:
            continue
        inside = (
            tuple(reading(message, message.structs[item.element], api_version))
            if item.is_struct
            else None
        )
        kind = item.type.replace(item.element, "struct") if item.is_struct else item.type
        yield (
            item.name,
            kind,
            api_version in item.nullable,
            item.tag if api_version in item.tagged else None,
            item.default,
            flexible and not item.legacy,
            inside,
        )


def joined(older: Versions, newest: Versions, dropped: Versions) -> Versions:
    """A range that combines ``older``, for the removed versions, and ``newest``."""
    before = Versions(older.first, min(older.last, dropped.last))
    after = Versions(max(newest.first, dropped.last + 1), newest.last)
    if not before:
        return after
    if not after:
        return before
    assert before.last + 1 == after.first, f"{older} and {newest} leave a hole"
    return Versions(before.first, after.last)


def merge_fields(older: list[Field], newest: list[Field], dropped: Versions) -> list[Field]:
    """The newest fields, with ranges that include the removed versions."""
    by_name = {item.name: item for item in older}
    merged = []
    for item in newest:
        old = by_name.get(item.name)
        if old is None or old.versions.first > dropped.last:
            versions = joined(NEVER, item.versions, dropped)
            merged.append(replace(item, versions=versions))
            continue
        merged.append(
            replace(
                item,
                versions=joined(old.versions, item.versions, dropped),
                nullable=joined(old.nullable, item.nullable, dropped),
                tagged=joined(old.tagged, item.tagged, dropped),
            )
        )
    # A field that exists only in removed versions goes after its old predecessor.
    known = {item.name for item in merged}
    for place, item in enumerate(older):
        if item.name in known or item.versions.first > dropped.last:
            continue
        followed = older[place - 1].name if place else None
        slot = next((i + 1 for i, other in enumerate(merged) if other.name == followed), 0)
        versions = Versions(item.versions.first, min(item.versions.last, dropped.last))
        merged.insert(slot, replace(item, versions=versions))
    return merged


def merge(older: Message, newest: Message) -> Message:
    if not newest.versions:
        return older
    if older.versions.first >= newest.versions.first:
        return newest
    dropped = Versions(older.versions.first, newest.versions.first - 1)
    # A struct may have been renamed; find its fields through the field that uses it.
    renamed = {
        new.element: old.element
        for new in [item for fields in (newest.fields, *newest.structs.values()) for item in fields]
        for old in [item for fields in (older.fields, *older.structs.values()) for item in fields]
        if new.name == old.name
        and new.is_struct
        and old.is_struct
        and new.element not in older.structs
    }
    merged = Message(
        name=newest.name,
        kind=newest.kind,
        api_key=newest.api_key,
        versions=Versions(dropped.first, newest.versions.last),
        flexible=joined(older.flexible, newest.flexible, dropped),
        fields=merge_fields(older.fields, newest.fields, dropped),
        structs={
            name: merge_fields(older.structs.get(renamed.get(name, name), []), fields, dropped)
            for name, fields in newest.structs.items()
        },
    )
    used = {item.element for item in merged.fields if item.is_struct}
    used |= {item.element for fs in merged.structs.values() for item in fs if item.is_struct}
    for name in used - set(merged.structs):
        merged.structs[name] = older.structs[name]
    for source, versions in ((older, dropped), (newest, newest.versions)):
        for api_version in versions.all():
            ours = list(reading(merged, merged.fields, api_version))
            theirs = list(reading(source, source.fields, api_version))
            assert ours == theirs, f"{merged.name} {api_version}:\n{ours}\n{theirs}"
    return merged


def all_messages(newest_folder: Path, older_folder: Path, sources: list[str]) -> list[Message]:
    newest = messages_of(newest_folder, NEWEST_ARTIFACTS, sources)
    older = messages_of(older_folder, OLDER_ARTIFACTS, sources)
    chosen = []
    for name in sorted(newest):
        message = newest[name]
        if name in older and message.kind in ("request", "response", "header"):
            message = merge(older[name], message)
        chosen.append(message)
    return chosen


def reachable(message: Message) -> dict[str, list[Field]]:
    """The used structs, in the order of first use."""
    found: dict[str, list[Field]] = {}

    def visit(fields: list[Field]) -> None:
        for item in fields:
            if item.is_struct and item.element not in found:
                found[item.element] = message.structs[item.element]
                visit(found[item.element])

    visit(message.fields)
    return found


def table(message: Message) -> str:
    head = [message.kind, str(message.api_key if message.api_key is not None else "-")]
    head += [str(message.versions), "flexible", str(message.flexible)]
    lines = [" ".join(head), *(item.line() for item in message.fields)]
    for name, fields in reachable(message).items():
        lines += [f"{name}:", *(item.line() for item in fields)]
    return "\n".join(lines)


def write_tables(messages: list[Message], sources: list[str]) -> None:
    cited = "\n".join(f"    {name}" for name in sources)
    text = f'''"""The fields of every message, as text that ``schema`` reads on first use.

Generated by scripts/generate_messages.py; do not edit. The facts come from the
message definitions inside these files of Apache Kafka (Apache License 2.0):

{cited}

The first line of an entry is the kind, the API key (or the record type of an
internal topic), the versions and the flexible versions. A field is a name, a
type, its versions, and where they apply ``null`` with the versions that allow
it, ``tag`` with the number and the versions, ``legacy`` where flexible versions
keep the old encoding, and the default. Every range is inclusive on both sides.
A line with a colon begins a struct.
"""

'''
    requests = {m.api_key: m for m in messages if m.kind == "request"}
    text += "# key: (name, first version, last version, first flexible version)\n"
    text += "APIS: dict[int, tuple[str, int, int, int]] = {\n"
    for key in sorted(key for key in requests if key is not None):
        m = requests[key]
        name = m.name.removesuffix("Request")
        flexible_first = m.flexible.first if m.flexible else NO_LIMIT
        text += f'    {key}: ("{name}", {m.versions.first}, {m.versions.last}, {flexible_first}),\n'
    text += "}\n\nTABLES: dict[str, str] = {\n"
    for message in messages:
        text += f'    "{message.name}": """{table(message)}""",\n'
    text += "}\n"
    (PACKAGE / "tables.py").write_text(text)


def python_type(item: Field, outer: str) -> str:
    element = item.element
    name = f"{outer}.{element}" if item.is_struct else PYTHON_TYPES.get(element, "int")
    if item.type.startswith("[]"):
        name = f"list[{name}]"
    return f"{name} | None" if item.nullable or item.default == "null" else name


def stub_class(name: str, outer: str, fields: list[Field], indent: str) -> list[str]:
    lines = [f"{indent}class {name}(Message):"]
    lines += [f"{indent}    {item.name}: {python_type(item, outer)}" for item in fields]
    if fields:
        lines += [f"{indent}    def __init__(", f"{indent}        self,", f"{indent}        *,"]
        lines += [
            f"{indent}        {item.name}: {python_type(item, outer)} = ...," for item in fields
        ]
        lines += [f"{indent}    ) -> None: ..."]
    else:
        lines += [f"{indent}    def __init__(self) -> None: ..."]
    return lines


def write_stub(messages: list[Message]) -> None:
    lines = [
        "# The types of every message. Generated by scripts/generate_messages.py; do not edit.",
        "",
        "from headrace.wire.schema import Buffer, Message",
        "",
    ]
    for message in messages:
        outer = stub_class(message.name, message.name, message.fields, "")
        nested = [
            line
            for name, fields in reachable(message).items()
            for line in stub_class(name, message.name, fields, "    ")
        ]
        lines += [outer[0], *nested, *outer[1:], ""]
    (PACKAGE / "__init__.pyi").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--newest", type=Path, required=True, help="directory with the newest jars")
    parser.add_argument("--older", type=Path, required=True, help="directory with older jars")
    arguments = parser.parse_args()
    sources: list[str] = []
    messages = all_messages(arguments.newest, arguments.older, sources)
    write_tables(messages, sources)
    write_stub(messages)
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(PACKAGE)], check=True)
    print(f"{len(messages)} messages from {', '.join(sources)}")


if __name__ == "__main__":
    main()
