"""The rules that a machine can check: layers, purity, first lines, sizes, words that stay out.

The layer table is ARCHITECTURE.md's. Imports go down only; names on one line do not import
each other.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from headrace.model.loggers import LOGGERS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"

LAYERS = [
    {"model"},
    {"records", "wire"},
    {"arrow"},  # turns record batches into Arrow columns, so it stands above `records`
    {"core", "world"},
    {"storage", "coordination", "net"},
    {"client"},
    {"broker", "spark"},
    {"cli", "console", "testing", "mirror", "pipeline"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Decisions know no clock, no dice, no files, no sockets, no threads, no event loop.
IMPURE = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess",
    "tempfile", "threading", "time", "uuid", "pyspark",
}  # fmt: skip
PURE_PACKAGES = {"model", "records", "wire", "arrow", "core"}
# A simulation replaces the machine, so these packages reach it through ``world`` only.
OF_THE_MACHINE = {
    "multiprocessing", "os", "random", "secrets", "select", "selectors", "signal",
    "socket", "subprocess", "threading", "time", "uuid",
}  # fmt: skip
WITHOUT_MACHINE = {"broker", "net"}
# It names the type of the dice that it is given, and makes none.
MAY_NAME_DICE = {"broker/random_ids.py"}
# The demo and the embedded broker of the command line are a face on a face, and say so.
SIDEWAYS_ALLOWED = {("cli", "testing")}
# The Spark source and sink know a cluster only as a Kafka address, and only the demo imports them.
SPARK_MAY_IMPORT = {"model", "records", "wire", "arrow", "client"}
MAY_IMPORT_SPARK = {"spark", "cli"}
# Arrow comes with an extra, which a broker must not need.
MAY_IMPORT_ARROW = {"arrow", "spark"}
# LogManager and ReplicaManager are Kafka's own words; any other manager has a better name.
BANNED_NAMES = re.compile(
    r"(?<!^Log)(?<!^Replica)(?<!^Log_)(?<!^Replica_)Manager|Helper|Util|Impl\b|Info\b|Common"
)
FUNCTION_LINES_MAX = 70
PYTHON = ("src", "tests", "bench", "scripts", "examples")
REQUEST_FRAMING = {"encode_request", "parse_response_header"}
MAY_FRAME_REQUESTS = {"src/headrace/wire", "tests/unit/wire"}
CONNECTING = {"create_connection", "open_connection", "connect_ex", "sock_connect"}
MAY_CONNECT = {
    "src/headrace/world/network.py",  # dials for the client
    "src/headrace/client",
    "src/headrace/cli/client.py",  # tries the port before it starts librdkafka, sends nothing
}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_the_source_tree_is_where_these_tests_look():
    assert len(modules()) > 30


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    package = package_of(path)
    if not package:
        return
    for name in imports_of(path):
        if not name.startswith("headrace."):
            continue
        target = name.split(".")[1]
        assert target != "spark" or package in MAY_IMPORT_SPARK, f"{package}: {name}"
        assert target != "arrow" or package in MAY_IMPORT_ARROW, f"{package}: {name}"
        if target == package or target not in LEVEL or (package, target) in SIDEWAYS_ALLOWED:
            continue
        if package == "spark":
            assert target in SPARK_MAY_IMPORT, f"the Spark source and sink may not import {name}"
            continue
        assert LEVEL[target] < LEVEL[package], f"{package} may not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_decisions_and_bytes_are_pure(path):
    if package_of(path) not in PURE_PACKAGES:
        return
    impure = {name.split(".")[0] for name in imports_of(path)} & IMPURE
    assert not impure, f"a pure module imports {sorted(impure)}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_machine_is_reached_through_the_world_only(path):
    if package_of(path) not in WITHOUT_MACHINE:
        return
    used = {name.split(".")[0] for name in imports_of(path)} & OF_THE_MACHINE
    if path.relative_to(SOURCE).as_posix() in MAY_NAME_DICE:
        used -= {"random"}
    assert not used, f"use headrace.world instead of {sorted(used)}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_owns_and_names_explain_themselves(path):
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    assert docstring and docstring.splitlines()[0].endswith((".", ":", "?")), (
        "the first line is a sentence that says what the file owns"
    )
    assert not BANNED_NAMES.search(path.stem.title())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not BANNED_NAMES.search(node.name), node.name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


def test_there_is_one_kafka_client():
    """``wire/session.py`` frames requests, ``client/`` opens connections; others use them."""

    def is_in(name: str, places: set[str]) -> bool:
        return any(name == place or name.startswith(place + "/") for place in places)

    for path in (path for place in PYTHON for path in (ROOT / place).rglob("*.py")):
        used = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Attribute, ast.Name))
        }
        name = path.relative_to(ROOT).as_posix()
        if not is_in(name, MAY_FRAME_REQUESTS):
            assert not used & REQUEST_FRAMING, f"{name}: use headrace.client or wire/session.py"
        if is_in(name, {"src"}) and not is_in(name, MAY_CONNECT):
            assert not used & CONNECTING, f"{name}: use headrace.client"


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_nothing_unfinished_is_kept():
    # Spelled in two halves, so that this file does not find itself.
    unfinished = re.compile("TO" + "DO|FIX" + "ME|X" + "XX")
    for name in tracked_files():
        if name.endswith((".py", ".c", ".md", "Makefile")) and (ROOT / name).exists():
            for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                assert not unfinished.search(line), f"{name}:{number}: {line.strip()}"


def test_no_source_file_is_orphaned():
    """Every module is imported by another, by name from a table, or is an entry point."""
    text = "\n".join(path.read_text() for path in modules())
    text += (ROOT / "pyproject.toml").read_text()
    entry_points = {"__init__", "__main__", "main"}
    for path in modules():
        stem = path.stem
        if stem in entry_points:
            continue
        assert re.search(rf"\b{stem}\b", text.replace(path.read_text(), "")), (
            f"nobody uses {path.relative_to(SOURCE)}"
        )


def test_loggers_have_stable_names():
    """A logger is named after its subject, not after its module, which may move."""
    used = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if path.name == "broker_loggers.py" or not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func).endswith("getLogger"):
                assert isinstance(node.args[0], ast.Constant), f"{path}: name the logger"
                used.add(node.args[0].value)
    assert used == LOGGERS.keys()
    guide = (ROOT / "docs" / "guide.md").read_text()
    for name in LOGGERS:
        assert f"`{name}`" in guide, f"docs/guide.md does not list {name}"
