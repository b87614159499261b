"""Log collection: files and programs send their lines to topics, and topics fill databases."""

from headrace.ship.logging_handler import LoggingHandler
from headrace.ship.sql_sink import SinkFailed, SinkRecord, SqlSink

__all__ = ["LoggingHandler", "SinkFailed", "SinkRecord", "SqlSink"]
