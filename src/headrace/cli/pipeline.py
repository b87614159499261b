"""``headrace pipeline``: load topics into tables, run pipeline files, and generate events."""

import typer

from headrace.cli import pipeline_deadletters, pipeline_runs
from headrace.cli.options import examples, noun
from headrace.cli.pipeline_audit import audit
from headrace.cli.pipeline_files import compact, retention, vacuum
from headrace.cli.pipeline_generate import generate
from headrace.cli.pipeline_load import load
from headrace.cli.pipeline_status import status

app = noun(
    "Load topics into tables, and run pipelines.",
    "headrace pipeline load orders --table warehouse/orders",
    "headrace pipeline run views.py --once",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="pipeline")


app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline load orders --table warehouse/orders",
        "headrace pipeline load views --table warehouse/views --continuous \\",
        "    --value json --schema 'user BIGINT, page STRING, at BIGINT' --event-time at",
    ),
)(load)
app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline status views.py",
        "headrace pipeline status --table warehouse/orders",
    ),
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
app.command(
    epilog=examples(
        "headrace pipeline generate --date 2026-11-16 --events 500000",
        "headrace pipeline generate --rate 1000",
    ),
)(generate)
app.command(
    epilog=examples(
        "headrace pipeline audit --warehouse warehouse",
        "headrace pipeline audit page-views --format json",
    ),
)(audit)
app.add_typer(pipeline_deadletters.app, name="deadletters")
app.command(no_args_is_help=True, epilog=examples("headrace pipeline plan views.py"))(
    pipeline_runs.plan
)
app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline run views.py",
        "headrace pipeline run views.py --once --warehouse /data/warehouse",
        "headrace pipeline run views.py --from 2h",
        "headrace pipeline run views.py --warehouse s3://warehouse/site --state /data/site",
    ),
)(pipeline_runs.run)
app.command(no_args_is_help=True, epilog=examples("headrace pipeline test views.py"))(
    pipeline_runs.test
)
app.command(
    no_args_is_help=True,
    epilog=examples("headrace pipeline backfill views.py --since 2026-03-01 --until 2026-03-02"),
)(pipeline_runs.backfill)
app.command(no_args_is_help=True, epilog=examples("headrace pipeline state views.py"))(
    pipeline_runs.state
)
app.command(no_args_is_help=True, epilog=examples("headrace pipeline stop views.py"))(
    pipeline_runs.stop
)
