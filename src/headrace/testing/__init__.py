"""The test kit: a broker, or a whole cluster, inside your test."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import Broker
    from headrace.testing.cluster import Cluster
    from headrace.testing.groups import Group
    from headrace.testing.records import Record
    from headrace.testing.runners import BrokerFailed

__all__ = ["Broker", "BrokerFailed", "Cluster", "Group", "Record"]

_MODULES = {
    "Broker": "broker",
    "BrokerFailed": "runners",
    "Cluster": "cluster",
    "Group": "groups",
    "Record": "records",
}


def __getattr__(name: str) -> Any:
    # Every test session on the machine loads the pytest plugin, and this package with it. Only
    # the sessions that use a broker should pay for loading it.
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
