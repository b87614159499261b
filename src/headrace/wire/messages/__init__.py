"""Kafka's messages as classes, one for all versions of a message, built on first use.

    from headrace.wire import messages as m
    m.MetadataRequest(topics=None)

The stub beside this file types them; ``tables`` holds their fields; ``schema``
makes classes and codecs of those. Importing this module builds nothing.
"""

from headrace.wire.messages.tables import TABLES


def __getattr__(name: str) -> object:
    if name not in TABLES:
        raise AttributeError(f"Kafka has no message {name!r}")
    # Not at the top: schema reads the tables of this package, so it comes second.
    from headrace.wire.schema import message_class

    built = globals()[name] = message_class(name)
    return built


def __dir__() -> list[str]:
    return sorted(TABLES)
