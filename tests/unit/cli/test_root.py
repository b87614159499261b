"""Every command has a complete help text, and docs/cli.md matches it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "generate_cli_page.py"


def page_script():
    spec = importlib.util.spec_from_file_location("generate_cli_page", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.delenv("HEADRACE_BOOTSTRAP", raising=False)
        yield page_script()


def test_the_page_matches_the_help():
    checked = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_every_help_ends_with_an_example(script):
    commands = [(), *script.commands()]
    assert ("serve",) in commands and ("topics", "create") in commands
    for words in commands:
        text = script.help_of(*words)
        example = text.rpartition("Example:\n")[2]
        assert "headrace" in example and "Options:" not in example, words


def test_no_line_in_a_list_of_commands_is_truncated(script, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    nouns = {words[:-1] for words in script.commands() if len(words) > 1}
    for words in nouns:
        listed = script.help_of(*words).partition("Commands:\n")[2].partition("\n\n")[0]
        assert listed
        assert "..." not in listed, words
    assert "..." not in script.help_of().partition("Run:\n")[2]


def test_the_commands_are_grouped_by_what_they_are_for(script):
    sections = dict(re.findall(r"^(\w+):\n((?:  .*\n)+)", script.help_of(), re.M))
    listed = {
        title: re.findall(r"^  (\S+)", lines, re.M)
        for title, lines in sections.items()
        if title != "Options"
    }
    assert list(listed) == ["Run", "Data", "Inspect", "Administer", "Measure"]
    assert listed["Run"] == [
        "serve",
        "up",
        "stop",
        "zookeeper",
        "migrate-to-zookeeper",
        "demo",
    ]
    assert [(name,) for names in listed.values() for name in names] == [
        words for words in script.commands() if len(words) == 1
    ]


# These print no data, or what ZooKeeper's own scripts print.
WITHOUT_JSON = {
    ("serve",),
    ("up",),
    ("stop",),
    ("zookeeper",),
    ("migrate-to-zookeeper",),
    ("demo",),
    ("demo", "cluster"),
    ("demo", "pipeline"),
    ("pipeline", "stop"),
    ("report", "daily"),  # prints the path of its page
    ("report", "run"),
    ("reassign", "generate"),  # prints nothing but JSON
}


def test_every_command_that_prints_data_prints_json_too(script):
    nouns = {words[:-1] for words in script.commands() if len(words) > 1}
    for words in set(script.commands()) - nouns - WITHOUT_JSON:
        assert re.search(r"--format \S*json", script.help_of(*words)), words


def test_no_help_shows_types_of_python_or_markup(script):
    for words in script.commands():
        text = script.help_of(*words)
        assert not any(sign in text for sign in ("<str>", "<list", "<Path", "``", "......")), words


def test_a_required_argument_has_no_braces(script):
    assert "Usage: headrace topics alter [OPTIONS] TOPIC\n" in script.help_of("topics", "alter")
