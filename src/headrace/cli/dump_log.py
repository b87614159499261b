"""``headrace dump-log``: print the contents of log files, and verify them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import log_files, output, values
from headrace.cli.options import Format, OutputFormat, examples
from headrace.cli.record_format import json_bytes


def register(root: typer.Typer) -> None:
    root.command(
        "dump-log",
        no_args_is_help=True,
        epilog=examples(
            "headrace dump-log headrace-data/orders-0/00000000000000000000.log",
            "headrace dump-log --deep headrace-data/orders-0/*.log --format json",
            "headrace dump-log --verify-index headrace-data/orders-0",
        ),
    )(dump_log)


def dump_log(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="A .log, .index, .timeindex, .txnindex, .snapshot or checkpoint file, or a "
            "directory of such files.",
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Print each record of the batches.")] = False,
    verify_index: Annotated[
        bool,
        typer.Option("--verify-index", help="Check each index against its .log file."),
    ] = False,
    row_count_max: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--max",
            metavar="N",
            min=1,
            help="Print at most N entries per file (batches for .log files).",
        ),
    ] = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Print the contents of log files, without a broker.

    Does not modify the files. The exit status is 1 if a file is damaged or cannot be read.
    """
    documents = []
    is_sound = True
    verified_count = 0
    for path in _expanded(files):
        try:
            dump = log_files.dumped(
                path, deep=deep, verify_index=verify_index, row_count_max=row_count_max
            )
        except (OSError, log_files.NotALogFile) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else None
            output.error(f"{path}: {reason}" if reason else str(failure))
            is_sound = False
            continue
        is_sound = is_sound and not dump.problems
        verified_count += dump.verified is not None
        if format is Format.JSON:
            documents.append(
                {
                    "file": str(path),
                    "kind": dump.kind,
                    "entries": [_jsonable(row) for row in dump.rows],
                    "problems": dump.problems,
                    "verified": dump.verified and dump.verified._asdict(),
                }
            )
        else:
            _show(path, dump)
    if format is Format.JSON:
        output.document(documents)
    if verify_index and is_sound and not verified_count:
        output.note("Nothing was verified: none of these files is an .index or a .timeindex.")
    if not is_sound:
        output.leave(output.FAILED)


def _expanded(paths: list[Path]) -> list[Path]:
    """The files, with each directory replaced by the log files in it."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found.extend(
                entry for entry in sorted(path.iterdir()) if log_files.kind_of(entry) is not None
            )
        else:
            found.append(path)
    return found


def _show(path: Path, dump: log_files.Dump) -> None:
    output.heading(f"{path}: {values.counted(len(dump.rows), *_entry_names(dump.kind))}")
    if dump.rows and "records" in dump.rows[0]:
        records = [
            {**record, "batch": row["base_offset"]}
            for row in dump.rows
            for record in _records_of(row)
        ]
        _show_rows(records)
    else:
        _show_rows(dump.rows)
    if dump.verified is not None:
        against, count, wrong_count = dump.verified
        compared = values.counted(count, "entry", "entries")
        output.line(f"Verified: {compared} against {against}, {wrong_count or 'none'} wrong")
    for problem in dump.problems:
        output.error(f"{path}: {problem}")
    output.line("")


def _show_rows(rows: list[log_files.Row]) -> None:
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    output.table(
        [name.upper().replace("_", "-") for name in columns],
        [[_text(name, row.get(name)) for name in columns] for row in rows],
    )


def _records_of(row: log_files.Row) -> list[log_files.Row]:
    records = row["records"]
    assert isinstance(records, list)
    return records


def _entry_names(kind: str) -> tuple[str, str]:
    return ("batch", "batches") if kind == "log" else ("entry", "entries")


def _text(column: str, value: object) -> object:
    if value is not None and "timestamp" in column and isinstance(value, int):
        return values.iso(value) if value >= 0 else None
    if isinstance(value, bytes):
        return _readable(value)
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, tuple):
        return ",".join(
            f"{name}={'null' if data is None else _readable(data)}" for name, data in value
        )
    return value


def _readable(data: bytes) -> str:
    """Printable text as it is; other bytes with escapes, as Python prints them."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return str(data)[2:-1]
    return text if text.isprintable() else str(data)[2:-1]


def _jsonable(row: log_files.Row) -> dict[str, object]:
    """The row with bytes as text, or in base64 under another name, as consume prints them."""
    plain: dict[str, object] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            plain.update(json_bytes(name, value))
        elif name == "records":
            plain[name] = [_jsonable(record) for record in _records_of(row)]
        elif isinstance(value, tuple):
            plain[name] = [{"name": key, **_jsonable({"value": data})} for key, data in value]
        else:
            plain[name] = value
    return plain
