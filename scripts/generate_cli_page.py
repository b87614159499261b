"""Writes docs/cli.md from what each command's --help prints.

python scripts/generate_cli_page.py            write the page
python scripts/generate_cli_page.py --check    fail if it is not up to date
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))
# A fixed width of the help, whatever terminal runs this script.
os.environ["COLUMNS"] = "100"
os.environ.pop("HEADRACE_BOOTSTRAP", None)

import typer  # noqa: E402

from headrace.cli.main import COMMANDS, main  # noqa: E402
from headrace.cli.root import built  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

<!-- Written by scripts/generate_cli_page.py; do not edit. -->

`headrace NOUN VERB`, or `python -m headrace NOUN VERB`. The commands use a standard Kafka client
(confluent-kafka), so they work with Apache Kafka too.

- **Broker address.** `-b HOST:PORT`, or the environment variable `HEADRACE_BOOTSTRAP`. The default
  is `127.0.0.1:9092`. Pass client settings with `-X key=value` or `--client-config FILE`, by their
  librdkafka names.
- **Output.** Results go to stdout, as a table or, with `--format json`, as one JSON document
  (`consume` prints one object per line). Notes, progress and errors go to stderr. Tables that are
  piped have no color and are never truncated.
- **Exit status.**

  | status | meaning |
  |---|---|
  | 0 | success; also when Ctrl-C or SIGTERM ends `serve`, `consume`, or `demo` while it serves |
  | 1 | the operation, or one of several, failed; no broker was reached |
  | 2 | wrong usage: arguments, settings, or a file that cannot be parsed |
  | 130 | interrupted before the work was done |

- **Keys** select the same partition as in Kafka's Java producer (murmur2).
- **Kafka scripts.** Headrace accepts the command lines of Kafka's scripts: the script's name as the
  first word (`headrace kafka-topics.sh --create --topic orders`), a script's options behind a
  Headrace noun (`headrace topics --list`), and options of older versions (`--broker-list`,
  `--consumer-property`, `--zookeeper`, which is asked for the brokers of its cluster). A command
  line that no single command can express is refused with status 2 and the commands to use instead.
"""


def help_of(*words: str) -> str:
    written = io.BytesIO()
    printed = io.TextIOWrapper(written, encoding="utf-8")
    with redirect_stdout(printed):
        try:
            main([*words, "--help"])
        except SystemExit as ended:
            assert ended.code == 0, words
    printed.flush()
    text = written.getvalue().decode()
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command, in the order of the help."""
    root = typer.main.get_command(built(list(COMMANDS)))
    assert isinstance(root, typer.core.TyperGroup)
    for name in COMMANDS:
        yield from _within(root.commands[name], name)


def _within(command: object, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for verb, inner in getattr(command, "commands", {}).items():
        yield from _within(inner, *words, verb)


def page() -> str:
    parts = [INTRODUCTION, f"```\n{help_of()}\n```\n"]
    for words in commands():
        parts.append(f"{'#' * (len(words) + 1)} headrace {' '.join(words)}\n")
        parts.append(f"```\n{help_of(*words)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: python {sys.argv[0]}")
    else:
        PAGE.write_text(page())
