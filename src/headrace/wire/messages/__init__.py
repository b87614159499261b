"""Kafka's messages as classes: one class for all versions, built on first use.

    from headrace.wire import messages as m
    m.MetadataRequest(topics=None)

The stub next to this file has their types, ``tables`` their fields, and ``schema`` builds classes
and codecs. Importing this module builds nothing.
"""

from headrace.wire.messages.tables import TABLES


def __getattr__(name: str) -> object:
    if name not in TABLES:
        raise AttributeError(f"Kafka has no message {name!r}")
    # Not at the top: schema imports the tables of this package.
    from headrace.wire.schema import message_class

    built = globals()[name] = message_class(name)
    return built


def __dir__() -> list[str]:
    return sorted(TABLES)
