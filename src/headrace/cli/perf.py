"""``headrace perf``: measure the throughput and latency of a broker.

The Kafka client is driven from Python, so with small records this process limits the figures more
than the broker does.
"""

import typer

from headrace.cli.options import examples, noun
from headrace.cli.perf_consume import perf_consume
from headrace.cli.perf_latency import perf_latency
from headrace.cli.perf_produce import perf_produce

app = noun(
    "Measure the throughput and latency of a broker.",
    "headrace perf produce bench --records 1000000 --size 1k",
)
app.command(
    "produce",
    no_args_is_help=True,
    epilog=examples(
        "headrace perf produce bench --records 1000000 --size 1k",
        "headrace perf produce bench --rate 5000 --records 50000 --compression lz4",
    ),
)(perf_produce)
app.command(
    "consume",
    no_args_is_help=True,
    epilog=examples("headrace perf consume bench --records 1000000"),
)(perf_consume)
app.command(
    "latency",
    no_args_is_help=True,
    epilog=examples("headrace perf latency bench --records 2000 --size 100"),
)(perf_latency)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="perf")
