"""The test kit: a broker inside your test, and what a test does to it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import Broker
    from headrace.testing.groups import Group
    from headrace.testing.runners import BrokerFailed

__all__ = ["Broker", "BrokerFailed", "Group"]


def __getattr__(name: str) -> Any:
    # The pytest plugin lies in this package and is loaded by every test session on the
    # machine; the broker is loaded by those that use it.
    if name in __all__:
        from headrace.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
