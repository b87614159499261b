"""The output of the commands, and their exit statuses.

Results go to stdout: a table, or one JSON document. Notes, progress and errors go to stderr, so
that a pipe carries only results. On a terminal, rich draws the tables; elsewhere they are plain
aligned text without color or truncation. rich is imported only for a terminal, because ``serve``
prints too and must start fast.

    0    done
    1    the operation failed, or one of several did
    2    wrong usage: arguments, settings, a file that cannot be parsed
    130  interrupted before the work was done
"""

import contextlib
import json
import os
import sys
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.table import Table

DONE = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130

# The text of a cell without a value.
ABSENT = "-"


class CommandFailed(Exception):
    """Ends the command with one line on stderr and a status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


class ReaderGone(Exception):
    """The reader of stdout has closed it (``| head``): the command ends without an error.

    Not an OSError on purpose: typer would report that as a failure.
    """


def line(text: str) -> None:
    """Print one line of the result."""
    write(text.encode("utf-8", "replace") + b"\n")
    flush()


def note(text: str) -> None:
    """Print a note for people; a script that reads stdout does not see it."""
    print(text, file=sys.stderr, flush=True)


def error(text: str) -> None:
    """Print a one-line error after the program's name, as Unix tools do."""
    print(f"headrace: {text}", file=sys.stderr, flush=True)


def reason(failure: Exception) -> str:
    """The text of a failure, without the system's error number."""
    if not isinstance(failure, OSError) or failure.strerror is None:
        return str(failure)
    if failure.filename is None:
        return failure.strerror
    return f"{failure.filename}: {failure.strerror}"


def document(value: object) -> None:
    """Print the whole result as one JSON document."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def line_of_json(value: object) -> None:
    """Print the whole result as one line of JSON, for scripts that search for that line."""
    line(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def write(data: bytes) -> None:
    """Write raw bytes; ``flush`` sends them."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise ReaderGone from None


def flush() -> None:
    try:
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], kept: Container[str] = ()
) -> None:
    """Print rows under headings; a column without any value is omitted unless it is ``kept``."""
    cells = [[cell(value) for value in row] for row in rows]
    needed = [
        slot
        for slot in range(len(columns))
        if not cells or columns[slot] in kept or any(row[slot] != ABSENT for row in cells)
    ]
    headings = [columns[slot] for slot in needed]
    body = [[row[slot] for slot in needed] for row in cells]
    if is_terminal():
        from rich.console import Console

        Console(highlight=False).print(rich_table(headings, body))
    else:
        line("\n".join(aligned([headings, *body])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with aligned columns, two spaces apart, without truncation."""
    widths = [max(len(row[slot]) for row in rows) for slot in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def bars(rows: Sequence[tuple[str, float, str]]) -> None:
    """Print a bar chart: label, bar and value of each row."""
    import shutil  # not at the top: it would slow down serve

    label_width = max(len(label) for label, _, _ in rows)
    text_width = max(len(text) for _, _, text in rows)
    room = min(48, shutil.get_terminal_size((80, 24)).columns - label_width - text_width - 4)
    largest = max(value for _, value, _ in rows) or 1.0
    for label, value, text in rows:
        drawn = _bar(value / largest, max(room, 8))
        if is_terminal():
            from rich.console import Console
            from rich.text import Text

            Console(highlight=False).print(
                Text.assemble((label.rjust(label_width), "bold"), "  ", (drawn, "cyan"), "  ", text)
            )
        else:
            line(f"{label.rjust(label_width)}  {drawn}  {text}")


def heading(text: str) -> None:
    """Print the heading of a part of the result."""
    if is_terminal():
        from rich.console import Console
        from rich.text import Text

        Console(highlight=False).print(Text(text, style="bold"), soft_wrap=True)
    else:
        line(text)


def progress(text: str) -> None:
    """Replace the progress line; does nothing unless stderr is a terminal."""
    if is_watched():
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def progress_over() -> None:
    """Clear the progress line."""
    progress("")


def confirmed(question: str) -> bool:
    """Ask on the terminal; any answer but yes means no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def abandon_stdout() -> None:
    """Redirect stdout to nothing: Python's flush at exit would fail on a closed pipe."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave(status: int) -> NoReturn:
    raise SystemExit(status)


def cell(value: object) -> str:
    """The text of a value in a table."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _bar(share: float, width: int) -> str:
    eighths = max(1, round(share * width * 8))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def rich_table(headings: Sequence[str], body: Sequence[Sequence[str]]) -> "Table":
    """The table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in headings:
        # A long value continues on the next line: a truncated value would be wrong.
        drawn.add_column(name, overflow="fold")
    for row in body:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
