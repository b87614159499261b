"""``headrace pipeline``: load topics into tables."""

import typer

from headrace.cli.options import examples, noun
from headrace.cli.pipeline_files import compact, retention, vacuum
from headrace.cli.pipeline_load import load
from headrace.cli.pipeline_status import status

app = noun(
    "Load topics into Delta Lake tables.",
    "headrace pipeline load orders --table warehouse/orders",
    "headrace pipeline status --table warehouse/orders",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="pipeline")


app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline load orders --table warehouse/orders",
        "headrace pipeline load views --table warehouse/views --every 60s \\",
        "    --value json --schema 'user BIGINT, page STRING, at BIGINT' --event-time at",
    ),
)(load)
app.command(
    no_args_is_help=True, epilog=examples("headrace pipeline status --table warehouse/orders")
)(status)
app.command(
    no_args_is_help=True, epilog=examples("headrace pipeline compact --table warehouse/orders")
)(compact)
app.command(
    no_args_is_help=True,
    epilog=examples("headrace pipeline retention --table warehouse/orders --older-than 30d"),
)(retention)
app.command(
    no_args_is_help=True,
    epilog=examples("headrace pipeline vacuum --table warehouse/orders --older-than 7d --dry-run"),
)(vacuum)
