"""Who asks, in which version, and over which listener: what every handler is given."""

from typing import NamedTuple

ANONYMOUS = "User:ANONYMOUS"


class Context(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    listener: str
    client_host: str
    principal: str = ANONYMOUS
