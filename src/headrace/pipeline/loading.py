"""Loads a pipeline file: the functions that it declares, each with its file and line."""

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headrace.pipeline.definition import declared
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
    """The pipeline file at this path, or the shipped one of this name. Raises BadPipeline."""
    path = Path(file)
    if not path.suffix and not path.exists():
        found = importlib.util.find_spec(_SHIPPED) and importlib.util.find_spec(
            f"{_SHIPPED}.{file}"
        )
        if found and found.origin:
            return _loaded(file, Path(found.origin), f"{_SHIPPED}.{file}")
    if not path.is_file():
        raise BadPipeline([Mistake(Place(file, 0), f"no such file{_shipped()}")])
    if not path.stem.isidentifier():
        raise BadPipeline(
            [
                Mistake(
                    Place(file, 0),
                    f"the file is named {path.stem!r}, which is no name in Python; use letters, "
                    "digits and _",
                )
            ]
        )
    # No module of this name can be imported, so Spark pickles its functions by value.
    return _loaded(path.stem, path.absolute(), f"headrace_pipeline_file_{path.stem}")


def _shipped() -> str:
    spec = importlib.util.find_spec(_SHIPPED)
    if spec is None or not spec.submodule_search_locations:
        return ""
    places = [Path(place) for place in spec.submodule_search_locations]
    names = sorted(
        path.stem for place in places for path in place.glob("*.py") if path.stem != "__init__"
    )
    return f"; the shipped pipelines are {', '.join(names)}" if names else ""


def _loaded(name: str, path: Path, module_name: str) -> PipelineFile:
    module = _imported(path, module_name)
    nodes = []
    for found, function in vars(module).items():
        what = declared(function)
        if what is None or not inspect.isfunction(function):
            continue
        code = function.__code__
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
    except SyntaxError as broken:
        place = Place(broken.filename or str(path), broken.lineno or 1)
        raise BadPipeline([Mistake(place, f"syntax error: {broken.msg}")]) from broken
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
