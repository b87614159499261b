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
# The width of the help, whatever the terminal of whoever runs this.
os.environ["COLUMNS"] = "100"
os.environ.pop("HEADRACE_BOOTSTRAP", None)

import typer  # noqa: E402

from headrace.cli.main import COMMANDS, main  # noqa: E402
from headrace.cli.root import built  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

<!-- Written by scripts/generate_cli_page.py; do not edit. -->

`headrace NOUN VERB`, also as `python -m headrace`. The stock client (confluent-kafka) lies
underneath, so every command works with Apache Kafka too.

- **Where.** `-b HOST:PORT`, or the variable `HEADRACE_BOOTSTRAP`; otherwise `127.0.0.1:9092`.
  Settings of the client go with `-X key=value` or `--client-config FILE`, by librdkafka's names.
- **What comes out.** Results on stdout, as a table, or with `--format json` as one JSON document
  and nothing else (`consume` prints an object to a line). Remarks, progress and errors go to
  stderr. Tables that are piped have no colour and are never cut.
- **How it ends.**

  | status | meaning |
  |---|---|
  | 0 | done; also `serve`, `consume` and `demo` after its show, ended by Ctrl-C or SIGTERM |
  | 1 | the operation failed, or one of several did; no broker was reached |
  | 2 | wrong usage: arguments, settings, a file that cannot be understood |
  | 130 | interrupted before the work was done |

- **Keys** land in the partition where Kafka's Java producer puts them (murmur2).
- **Kafka's own spellings** are understood: a script's name as the first word
  (`headrace kafka-topics.sh --create --topic orders`), its options behind our nouns
  (`headrace topics --list`), and the old ones (`--broker-list`, `--consumer-property`,
  `--zookeeper` where it names this machine). What cannot be said in one command is refused with
  the words that can, and status 2.
"""


def help_of(*words: str) -> str:
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(said):
        try:
            main([*words, "--help"])
        except SystemExit as ended:
            assert ended.code == 0, words
    said.flush()
    text = said.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def commands() -> Iterator[tuple[str, ...]]:
    """Every command with its words, in the order of the help."""
    root = typer.main.get_command(built(list(COMMANDS)))
    for name in COMMANDS:
        yield (name,)
        for verb in getattr(root.commands[name], "commands", {}):  # type: ignore[attr-defined]
            yield (name, verb)


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
