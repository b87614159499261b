"""The options that several commands share, so that each is spelled and explained once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap-server",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT",
        help="The broker to ask; several may be given, separated by commas.",
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="A setting of the client, by librdkafka's name; may be repeated.",
    ),
]
ClientFile = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        metavar="FILE",
        help="A properties file with settings of the client.",
    ),
]
OutputFormat = Annotated[
    Format, typer.Option("--format", metavar="table|json", help="How to print the result.")
]
OptionalPlaces = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC[:PARTITION]", help="All topics if none is named; orders:0,2-4 works too."
    ),
]
IncludeInternal = Annotated[
    bool,
    typer.Option("--internal", help="Also internal topics, where no topic is named."),
]


def examples(*lines: str) -> str:
    """The end of a help text: what to type, as it is typed."""
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
