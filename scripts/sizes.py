"""Report what is larger than we aim for: classes, files and functions of the source, worst first.

A report, not a law: it always succeeds. ``tests/test_tidy.py`` holds the hard limits.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "headrace"
METHODS_AIM = 25  # of a class
FILE_LINES_AIM = 500
FUNCTION_LINES_AIM = 60
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def classes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield sum(isinstance(member, Function) for member in node.body), node.name


def functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def report(title: str, aim: int, unit: str, sizes: list[tuple[int, str]]) -> None:
    large = sorted(((size, name) for size, name in sizes if size > aim), reverse=True)
    print(f"{title} over {aim} {unit}: {len(large)}")
    for size, name in large:
        print(f"{size:6}  {name}")


def main() -> None:
    by_class, by_file, by_function = [], [], []
    for path in sorted(SOURCE.rglob("*.py")):
        text, name = path.read_text(), path.relative_to(SOURCE).as_posix()
        tree = ast.parse(text)
        by_file.append((len(text.splitlines()), name))
        by_class += [(size, f"{name}: {found}") for size, found in classes(tree)]
        by_function += [(size, f"{name}: {found}") for size, found in functions(tree)]
    report("Classes", METHODS_AIM, "methods", by_class)
    report("Files", FILE_LINES_AIM, "lines", by_file)
    report("Functions", FUNCTION_LINES_AIM, "lines", by_function)


if __name__ == "__main__":
    main()
