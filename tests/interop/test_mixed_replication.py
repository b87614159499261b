"""The replication matrix in clusters of Headrace and Apache Kafka, with the same checker.

Producers, readers and a group run while leaders, followers and controllers of either kind are
killed, stopped and paused.
"""

import itertools
import time

import pytest

from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients

from .mixed_cluster import MIXTURES, Kind, MixedCluster
