"""The real network under the asyncio door; a simulated network replaces ``dial``."""

import asyncio
from typing import Protocol


class Dial(Protocol):
    """Connects ``protocol`` to an address, or raises OSError.

    The protocol gets what asyncio's transports give: ``connection_made`` with a transport that has
    ``write`` and ``abort``, then ``get_buffer`` and ``buffer_updated`` for each receive, and
    ``connection_lost`` once, also after ``abort``.
    """

    async def __call__(self, protocol: asyncio.BufferedProtocol, host: str, port: int) -> None: ...


async def dial(protocol: asyncio.BufferedProtocol, host: str, port: int) -> None:
    """Open a TCP connection. asyncio sets TCP_NODELAY on it."""
    await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)
