"""The context of a request: API and version, client, listener and principal."""

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

    def described_client(self) -> str:
        """The client, for a log line."""
        client_id = f"client id {self.client_id}" if self.client_id else "no client id"
        return f"{self.principal} at {self.client_host} ({client_id})"

    def of_request(self, correlation_id: int) -> "Context":
        """The context of the client's next request of the same API and version."""
        key, version, _, client_id, listener, host, principal = self
        return tuple.__new__(
            Context, (key, version, correlation_id, client_id, listener, host, principal)
        )
