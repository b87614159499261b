"""Loads a pipeline file: the functions that it declares, each with its file and line."""

import ast
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headrace.pipeline.definition import declared, rules_of
from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.graph import Mistake, Node, Place

_SHIPPED = "headrace.pipeline.jobs"


class PipelineFile:
    """A loaded file. Its name names its state, its consumer groups and its transactions."""

    def __init__(self, name: str, path: Path, nodes: list[Node]) -> None:
        self.name = name
        self.path = path
        self.nodes = [node for node in nodes if node.declared.kind != "example"]
        self.examples = [node for node in nodes if node.declared.kind == "example"]


def load(file: str) -> PipelineFile:
    """The pipeline file at this path, or the shipped one of this name. Raises BadPipeline.

    A file may build columns when it is imported, which needs a Spark session.
    """
    path = check_syntax(file)
    if path.parent == _shipped_directory():
        return _loaded(path.stem, path, f"{_SHIPPED}.{path.stem}")
    # No module of this name can be imported, so Spark pickles its functions by value.
    return _loaded(path.stem, path, f"headrace_pipeline_file_{path.stem}")


def check_syntax(file: str) -> Path:
    """The path of a pipeline file that Python can parse. Raises BadPipeline."""
    path = Path(file)
    shipped = _shipped_directory() / f"{file}.py"
    if not path.suffix and not path.exists() and shipped.is_file():
        return shipped
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in _shipped_directory().glob("[a-z]*.py")))
        hint = f"; Headrace has the pipelines {known}" if known else ""
        raise BadPipeline([Mistake(Place(file, 0), f"no such file{hint}")])
    if not path.stem.isidentifier():
        text = f"{path.stem!r} is not a name in Python; use letters, digits and _"
        raise BadPipeline([Mistake(Place(file, 0), text)])
    try:
        ast.parse(path.read_bytes())
    except SyntaxError as broken:
        place = Place(str(path.absolute()), broken.lineno or 1)
        raise BadPipeline([Mistake(place, f"syntax error: {broken.msg}")]) from broken
    except ValueError as broken:
        raise BadPipeline([Mistake(Place(file, 1), str(broken))]) from broken
    return path.absolute()


def _shipped_directory() -> Path:
    return Path(__file__).parent / "jobs"


def _loaded(name: str, path: Path, module_name: str) -> PipelineFile:
    module = _imported(path, module_name)
    nodes = []
    for found, function in vars(module).items():
        what = declared(function)
        if not inspect.isfunction(function):
            continue
        code = function.__code__
        rules = rules_of(function)
        if rules and (what is None or what.kind == "example"):
            place = Place(code.co_filename, rules[0].line)
            text = f"{found}: expect needs a source, step, table or topic"
            raise BadPipeline([Mistake(place, text)])
        if what is None:
            continue
        nodes.append(
            Node(
                found,
                what,
                tuple(inspect.signature(function).parameters),
                Place(code.co_filename, code.co_firstlineno),
                function,
                is_imported=Path(code.co_filename) != path,
            )
        )
    if not nodes:
        raise BadPipeline(
            [Mistake(Place(str(path), 1), "declares nothing; use source, step, table and topic")]
        )
    return PipelineFile(name, path, nodes)


def _imported(path: Path, module_name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if module_name.startswith(_SHIPPED):
        sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as failed:
        raise BadPipeline([mistake_of(failed, Place(str(path), 1))]) from failed
    return module


def mistake_of(failure: BaseException, place: Place) -> Mistake:
    """The innermost line of the pipeline file that this failure passed through."""
    lines = [
        frame.lineno or place.line
        for frame in traceback.extract_tb(failure.__traceback__)
        if frame.filename == place.file
    ]
    text = str(failure).strip().split("\n")[0] or type(failure).__name__
    if not isinstance(failure, (ImportError, NameError)) and type(failure).__module__ == "builtins":
        text = f"{type(failure).__name__}: {text}"
    return Mistake(place._replace(line=lines[-1] if lines else place.line), text)
