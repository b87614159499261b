"""The pages are true: generated ones are current; links, commands and quoted log lines exist."""

import ast
import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer

from headrace.cli.main import COMMANDS, main
from headrace.cli.root import built

ROOT = Path(__file__).parents[1]
GENERATORS = sorted((ROOT / "scripts").glob("generate_*_page.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# What a reader is told to type.
TOLD = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_OURS = {ROOT / "docs" / "cli.md"}  # quotes the help itself


def name(path):
    return str(path.relative_to(ROOT))


def code_lines(page):
    """The lines of fenced code, continued ones joined."""
    text = "\n".join(re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S))
    return text.replace("\\\n", " ").splitlines()


def commands_in(line):
    """Every command of ours in a line of shell: after a prompt, a pipe, or an assignment."""
    line = re.sub(r"\s#\s.*", "", line.removeprefix("$ "))
    for part in re.split(r"\||&&|;", line):
        try:
            words = shlex.split(part)
        except ValueError:
            continue  # not shell
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words[:1] == ["headrace"]:
            yield words[1:]


def told_commands():
    return [
        pytest.param(words, id=f"{name(page)}: headrace {' '.join(words)}")
        for page in TOLD
        if page not in NOT_OURS
        for line in code_lines(page)
        for words in commands_in(line)
    ]


@pytest.fixture(scope="module")
def commands():
    """Every command with the text of its help, by its words."""
    root = typer.main.get_command(built(list(COMMANDS)))
    return {
        words: help_of(*words) for noun in COMMANDS for words in runnable(root.commands[noun], noun)
    }


def runnable(command, *words):
    verbs = getattr(command, "commands", {})
    if not verbs or command.invoke_without_command:
        yield words
    for verb, inner in verbs.items():
        yield from runnable(inner, *words, verb)


def help_of(*words):
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(said), pytest.raises(SystemExit):
        main([*words, "--help"])
    said.flush()
    return said.buffer.getvalue().decode()


@pytest.mark.parametrize("script", GENERATORS, ids=lambda path: path.stem)
def test_a_generated_page_is_what_its_script_would_write(script):
    checked = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, f"run make docs: {checked.stderr}"


def test_make_docs_writes_every_generated_page():
    makefile = (ROOT / "Makefile").read_text()
    for script in GENERATORS:
        assert f"scripts/{script.name}" in makefile


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("words", told_commands())
def test_a_command_that_a_page_shows_exists_with_its_options(words, commands):
    options = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
    plain = [word for word in words if not word.startswith("-")]
    known = (commands.get(tuple(plain[:count])) for count in (3, 2, 1))
    text = next(filter(None, known), None)
    assert text is not None, f"there is no command headrace {' '.join(words)}"
    for option in options:
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), (
            f"headrace {' '.join(words)} has no option {option}"
        )


def test_the_pages_show_commands():
    assert len(told_commands()) > 10


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for line in page.read_text().splitlines():
            for target in re.findall(r"(?:`|^)make ([a-z]+)", line):
                assert target in targets, f"{name(page)}: make {target}"


def quoted_log_lines():
    """The texts that the guide quotes in its table of failures, in their fixed pieces."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    table = guide.partition("## When something goes wrong")[2].partition("\n## ")[0]
    for row in table.splitlines():
        for quoted in re.findall(r"`([^`]+ [^`]+)`", row.split("|")[2] if "|" in row else ""):
            yield (
                quoted,
                [
                    piece.strip()
                    for piece in re.split(r"…|\d+|: |PLAINTEXT|headrace\.sqlite", quoted)
                    if piece.strip()
                ],
            )


def texts_of_the_code():
    """Every string of the sources, with … for what is filled in at run time."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[\d.]*[sdrf]", "…", node.value)


def test_the_guide_quotes_log_lines_that_exist():
    texts = "\n".join(texts_of_the_code())
    quotes = list(quoted_log_lines())
    assert len(quotes) > 10
    for quoted, pieces in quotes:
        if quoted != "can't start new thread":  # Python's own
            missing = [piece for piece in pieces if piece not in texts]
            assert missing == [], f"docs/guide.md quotes {quoted!r}, which no code prints"
