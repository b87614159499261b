"""Log collection: ships log files, streams and Python's log records to topics."""

from headrace.ship.logging_handler import LoggingHandler

__all__ = ["LoggingHandler"]
