"""What a test does with a broker and with a cluster alike: a with block, topics, records."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.testing.records import Record, Sendable, read_all, send
from headrace.testing.runners import BrokerFailed
from headrace.testing.topics import Topics, create_topics, parse_topics

if TYPE_CHECKING:  # imported where it is used: a broker starts faster without it
    from confluent_kafka.admin import AdminClient


class Handle(ABC):
    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None:
        """Stop cleanly. Raises BrokerFailed if a broker failed while it ran."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for any client."""

    def answering_servers(self) -> str:
        """The addresses of the brokers that answer now, for the clients of the kit."""
        return self.bootstrap_servers

    # --- the with block ------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            # The failure of the test itself says more.
            with contextlib.suppress(BrokerFailed):
                self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # --- topics and records --------------------------------------------------

    def create_topics(self, topics: Topics) -> None:
        """Create topics, with one partition each unless a mapping says otherwise.

        Raises KafkaException if a topic exists.
        """
        create_topics(self._admin(), parse_topics(topics))

    def reset(self) -> None:
        """Delete every topic, so that the next test finds no records.

        This includes the internal topics, and with them all committed offsets.
        """
        admin = self._admin()
        names = list(admin.list_topics(timeout=10).topics)
        if names:
            for deleted in admin.delete_topics(names).values():
                deleted.result()

    def produce(self, topic: str, records: Iterable[Sendable]) -> None:
        """Send records and wait until all of them are acknowledged.

        A record is a value, a pair of key and value, or a ``Record``. Strings are sent as UTF-8.
        """
        send(self.answering_servers(), topic, records)

    def records(self, topic: str, *, isolation_level: str = "read_committed") -> list[Record]:
        """All records that the topic holds now, ordered by partition and offset."""
        return read_all(self.answering_servers(), topic, isolation_level=isolation_level)

    def _admin(self) -> "AdminClient":
        """A client that does not log lost connections: a test restarts brokers on purpose."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.answering_servers(), "log_level": 0})
