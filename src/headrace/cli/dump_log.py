"""``headrace dump-log``: what is inside the files of a log."""

import typer


def register(root: typer.Typer) -> None:
    pass
