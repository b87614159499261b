"""Messages of Spark in our words."""

from headrace.pipeline.errors import broken_file, python_error

FAILED = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source
perform latestOffset: Traceback (most recent call last):
  File "stream.py", line 7, in report_loss
headrace.spark.failures.PipelineError: views-0 no longer exists; the query was at offset 1
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: headrace-site-100ms [id = 1, runId = 2]
"""


def test_the_error_of_a_python_process_is_found():
    expected = "headrace.spark.failures.PipelineError: views-0 no longer exists; the query was at "
    assert python_error(FAILED) == f"{expected}offset 1"
    assert python_error("[CAST_INVALID_INPUT] 'x' is no INT\nError: more") == (
        "[CAST_INVALID_INPUT] 'x' is no INT"
    )


def test_the_exceptions_of_a_failed_call_are_named():
    text = """An error occurred while calling o83743.collectToPython.
: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.Scheduler.abort(Scheduler.scala:1)
Caused by: java.io.IOException: wrapped
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:1)
"""
    assert python_error(text) == (
        "org.apache.spark.SparkException: Job aborted, "
        "caused by java.lang.OutOfMemoryError: Java heap space"
    )


def test_a_file_that_cannot_be_read_is_named():
    text = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///w/t/a.parquet."
    found = broken_file(text)
    assert found is not None and str(found).startswith("/w/t/a.parquet cannot be read")
    assert broken_file("[CAST_INVALID_INPUT] file:///w/t/a.parquet") is None
    text = "headrace.pipeline.errors.LoadStopped: s3://w/t/a.parquet cannot be read: no such key."
    found = broken_file(f"Traceback:\n{text} Restore it")
    assert found is not None and str(found).startswith("s3://w/t/a.parquet cannot be read: it is")
