"""What the commands of ``headrace pipeline`` share: the table, and the options of the source."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, values
from headrace.cli.client import Connection

TableOption = Annotated[
    Path, typer.Option("--table", metavar="DIR", help="Directory of the Delta table.")
]

PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="Pipeline file, or the name of a pipeline that Headrace has."
    ),
]
Warehouse = Annotated[
    Path, typer.Option("--warehouse", metavar="DIR", help="Directory of the tables.")
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Spark master.")]


def source_options(
    bootstrap: str,
    settings: Sequence[str] | None,
    client_file: Path | None,
    more: Sequence[str] | None = None,
) -> dict[str, str]:
    """Options of the Spark source for this cluster; ``more`` are given by their own names."""
    found = {"kafka.bootstrap.servers": bootstrap}
    for name, value in Connection(bootstrap, settings, client_file).settings.items():
        found[f"librdkafka.{name}"] = str(value)
    return found | values.pairs(more or (), "--option")


def require_tables() -> None:
    """Raises CommandFailed if the packages that read tables are missing."""
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as missing:
        raise output.CommandFailed(
            f"{missing.name} is not installed. Install the extra `pipeline`: "
            "pip install 'headrace[pipeline]'"
        ) from None


def require_spark(what: str) -> None:
    """Raises CommandFailed if Spark cannot run."""
    from headrace.spark.demo import why_not

    missing = why_not()
    if missing is not None:
        raise output.CommandFailed(f"{what} needs Spark: {missing}")


def local_directory(table: Path, option: str = "--table") -> Path:
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(table)):
        raise values.wrong(
            f"{option} {table}: only directories are supported, on this machine or mounted on all "
            "machines of the Spark cluster"
        )
    return table.absolute()
