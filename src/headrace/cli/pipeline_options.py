"""What the commands of ``headrace pipeline`` share: the table, and the options of the source."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output, values
from headrace.cli.client import Connection

if TYPE_CHECKING:
    from headrace.pipeline.runner.settings import RunSettings
    from headrace.pipeline.warehouse.storage import Location
    from headrace.pipeline.warehouse.table import Table

TableOption = Annotated[
    str,
    typer.Option(
        "--table",
        metavar="DIR|URL",
        help="The Delta table: a directory, s3://BUCKET/PATH or hdfs://HOST:PORT/PATH.",
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Option of the storage, such as aws_region=eu-west-1; may be repeated.",
    ),
]

PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="Pipeline file, or the name of a shipped pipeline, such as activity."
    ),
]
Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse",
        metavar="DIR|URL",
        help="Place of the tables: a directory, s3://BUCKET/PATH or hdfs://HOST:PORT/PATH.",
    ),
]
DEFAULT_WAREHOUSE = "warehouse"
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Directory of the checkpoints. Required if the warehouse is a URL. Default: "
        "_pipelines in the warehouse.",
    ),
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Spark master.")]
Archives = Annotated[
    str | None,
    typer.Option(
        "--archives",
        metavar="FILE",
        help="Archive of Python packages for the executors of a cluster: .tar.gz or .zip.",
    ),
]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="Setting of the Spark session; may be repeated."
    ),
]
_PACKAGES = "packages"  # the directory of the archive on an executor


def spark_config(master: str, archives: str | None, given: Sequence[str] | None) -> dict[str, str]:
    """The settings of a Spark session for these options."""
    found = {}
    if archives is not None:
        if not Path(archives).is_file() and "://" not in archives:
            raise values.wrong(f"--archives {archives}: there is no such file")
        # YARN distributes files itself, before an executor starts.
        name = "spark.yarn.dist.archives" if master == "yarn" else "spark.archives"
        found[name] = f"{archives}#{_PACKAGES}"
        found["spark.executorEnv.PYTHONPATH"] = f"./{_PACKAGES}"
    return found | values.pairs(given or (), "--conf")


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


def bad_share(text: str) -> float:
    """The share that ``--bad-max`` allows."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text)
    if found is None or float(found[1]) > 100:
        raise values.wrong(f"--bad-max {text!r}: expected a percentage from 0 to 100, such as 5%")
    return float(found[1]) / 100


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


def local_directory(directory: Path, option: str) -> Path:
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(directory)):
        raise values.wrong(
            f"{option} {directory}: only directories are supported, on this machine or mounted on "
            "all machines of the Spark cluster"
        )
    return directory.absolute()


def table_location(
    table: str, storage: Sequence[str] | None, option: str = "--table"
) -> "Location":
    from headrace.pipeline.warehouse.storage import parse_location
    from headrace.spark.failures import BadOption

    try:
        return parse_location(table, values.pairs(storage or (), "--storage-option"))
    except BadOption as wrong:
        raise values.wrong(f"{option}: {wrong}") from None


def run_settings(
    warehouse: str, storage: Sequence[str] | None, state: Path | None, source: Mapping[str, str]
) -> "RunSettings":
    """The settings of a pipeline for these options."""
    from headrace.pipeline.runner.settings import RunSettings

    location = table_location(warehouse, storage, "--warehouse")
    if state is None and not location.is_directory:
        raise values.wrong(
            f"--warehouse {warehouse} is a URL, so --state must name a directory for the "
            "checkpoints. On a Spark cluster all machines must share it"
        )
    directory = None if state is None else local_directory(state, "--state")
    return RunSettings(location, source, state_directory=directory)


def existing_table(table: str, storage: Sequence[str] | None) -> "Table":
    """Raises CommandFailed if there is none."""
    require_tables()
    from headrace.pipeline.errors import LoadStopped
    from headrace.pipeline.warehouse.table import open_table

    location = table_location(table, storage)
    try:
        opened = open_table(location)
    except LoadStopped as failure:
        raise output.CommandFailed(str(failure)) from None
    if opened is None:
        raise output.CommandFailed(f"there is no Delta table in {location}")
    return opened
