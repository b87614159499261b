"""``headrace version``: the versions of Headrace, Python and the client library."""

import platform

import typer

from headrace import __version__
from headrace.cli import output
from headrace.cli.options import Format, OutputFormat, examples


def register(root: typer.Typer) -> None:
    root.command("version", epilog=examples("headrace version --format json"))(show_version)


def show_version(format: OutputFormat = Format.TABLE) -> None:
    """Print versions of Headrace, Python and librdkafka."""
    import confluent_kafka

    versions = {
        "headrace": __version__,
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent-kafka": confluent_kafka.version(),
    }
    if format is Format.JSON:
        output.document(versions)
    else:
        output.table(["PART", "VERSION"], versions.items())
