"""The names of Headrace's loggers: a short list that stays the same when modules move.

Operators filter logs and set levels by these names, so they are part of the interface.
"""

from collections.abc import Mapping

LOGGERS: Mapping[str, str] = {
    "headrace.broker": "start and stop, requests, periodic tasks",
    "headrace.controller": "topics, leaders and directory assignment",
    "headrace.coordinator": "groups and transactions",
    "headrace.replication": "partitions, moves between log directories",
    "headrace.storage": "logs, log directories, recovery, retention",
    "headrace.compaction": "compaction of logs",
    "headrace.network": "listeners and connections",
    "headrace.metadata": "cluster metadata and dynamic settings",
    "headrace.cli": "the command line",
    "headrace.spark": "the Spark source and sink",
    "headrace.pipeline": "the warehouse load and pipeline files",
}
