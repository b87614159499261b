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

    def of_request(self, correlation_id: int) -> "Context":
        """The same for the next request of the same client."""
        key, version, _, client_id, listener, host, principal = self
        return tuple.__new__(
            Context, (key, version, correlation_id, client_id, listener, host, principal)
        )
