"""The test kit: a broker inside your test."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import Broker
    from headrace.testing.groups import Group
    from headrace.testing.records import Record
    from headrace.testing.runners import BrokerFailed

__all__ = ["Broker", "BrokerFailed", "Group", "Record"]


def __getattr__(name: str) -> Any:
    # Every test session on the machine loads the pytest plugin, and this package with it. Only
    # the sessions that use a broker should pay for loading it.
    if name in __all__:
        from headrace.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
