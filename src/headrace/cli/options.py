"""The options that several commands share, so that each is defined and explained once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


Bootstrap = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap-server",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT",
        help="Broker to connect to; separate several with commas.",
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="Client setting, by its librdkafka name; may be repeated.",
    ),
]
ClientFile = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        metavar="FILE",
        help="Properties file with client settings.",
    ),
]
OutputFormat = Annotated[
    Format, typer.Option("--format", metavar="table|json", help="Output format.")
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)]
OptionalPlaces = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC[:PARTITION]",
        help="Topics or partitions: orders, orders:0, orders:0,2-4. All topics if none is given.",
    ),
]
Matching = Annotated[
    str | None,
    typer.Option(
        "--matching",
        metavar="REGEX",
        help="Topics whose whole name matches this regular expression, instead of TOPIC.",
    ),
]
IncludeInternal = Annotated[
    bool,
    typer.Option("--internal", help="Include internal topics when no topic is given."),
]

AcksOption = Annotated[
    Acks,
    typer.Option("--acks", metavar="0|1|all", help="Acknowledgements to wait for."),
]
CompressionOption = Annotated[
    Compression,
    typer.Option(
        "-z",
        "--compression",
        metavar="none|gzip|snappy|lz4|zstd",
        help="Compression codec.",
    ),
]
RecordSize = Annotated[
    str, typer.Option("-s", "--size", metavar="BYTES", help="Size of each value: 100, 1k, 1M.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", hidden=True)]
GroupTopics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:N,N]", help="Topic or partitions; may be repeated."),
]


def examples(*lines: str) -> str:
    """The end of a help text: command lines to copy."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def noun(summary: str, *example_lines: str) -> typer.Typer:
    """A group of verbs; without a verb it prints its help."""
    return typer.Typer(
        help=summary,
        epilog=examples(*example_lines),
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=CONTEXT_SETTINGS,
    )


CONTEXT_SETTINGS: dict[str, object] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
