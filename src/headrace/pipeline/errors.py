"""What can go wrong in the pipeline, beside the errors of the Spark source and the client.

CommitRefused   rows were not committed; the next plan may succeed      -> plan again
SchemaRefused   the records do not fit the columns of the table         -> change the schema
LoadStopped     a person has to decide                                  -> stop
BadPipeline     a pipeline file has mistakes                            -> correct the file
RunRefused      a pipeline cannot be run as asked                       -> decide, run again
ExpectationFailed  rows break the rules of a pipeline file           -> correct rows or rules
TooManyBadRecords  a topic has too many records that are no rows     -> correct the producer
BadQuery        an ad-hoc query is wrong                                -> correct the query
BrokenFile      a file of a table cannot be read                        -> restore it
"""

import re
from collections.abc import Sequence

from headrace.spark.failures import PipelineError


class CommitRefused(PipelineError):
    """The offsets of a batch do not continue the table's. Nothing was committed."""


class SchemaRefused(PipelineError):
    """The columns of a batch do not fit the table's. Nothing was committed."""


class LoadStopped(PipelineError):
    """The load cannot continue without a decision of its user."""


class BadPipeline(PipelineError):
    """A pipeline file has mistakes. Nothing was run."""

    def __init__(self, mistakes: Sequence[object]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


class RunRefused(PipelineError):
    """A pipeline cannot be run as asked; the text says what to do."""


class ExpectationFailed(PipelineError):
    """Rows break the rules of their function. Nothing of the batch was written."""


class TooManyBadRecords(PipelineError):
    """Too many records of a topic would be dead letters. Nothing of the batch was written."""


class BadQuery(PipelineError):
    """An ad-hoc query is wrong; the text says why."""


class BrokenFile(PipelineError):
    """A file of a table cannot be read."""


_BROKEN_FILE = re.compile(
    r"\[(?:FAILED_READ_FILE|CANNOT_READ_FILE)[^\]]*\].*?file:/*(?P<path>/\S+?\.parquet)"
    r"|LoadStopped: (?P<url>\S+?\.parquet) cannot be read",  # by our own task
    re.DOTALL,
)


def broken_file(text: str) -> BrokenFile | None:
    """What Spark says about a file that it cannot read; None if it is about anything else."""
    found = _BROKEN_FILE.search(text)
    if found is None:
        return None
    return BrokenFile(
        f"{found['path'] or found['url']} cannot be read: it is damaged or gone. Restore the file, "
        "or use --reset, which deletes the tables of the pipeline and computes them again"
    )


def python_error(text: str) -> str:
    """The error of a Python process in a message of Spark, or what the JVM says."""
    text = text.partition("=== Streaming Query ===")[0]
    errors = re.findall(r"^(?:\w+\.)*[A-Z]\w+(?:Error|Exception)?: .+$", text, re.MULTILINE)
    if "Traceback" in text and errors:
        return str(errors[-1])
    # A failed call begins with a line that names only the call; exceptions of the JVM follow.
    thrown = re.findall(r"^(?:Caused by)?: (.+)$", text, re.MULTILINE)
    named = dict.fromkeys([thrown[0], thrown[-1]] if thrown else text.strip().split("\n")[:1])
    return ", caused by ".join(named)


def reason(failure: Exception) -> str:
    """The text of a failure of deltalake in one line, without colors and arrows."""
    return " ".join(re.sub(r"\x1b\[\d+m|↳", "", str(failure)).split())
