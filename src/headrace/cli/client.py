"""The Kafka client of the commands: its connection, its settings and its errors.

librdkafka's log lines are suppressed; the last error it reports becomes the reason in the
command's one-line error.
"""

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    AdminClient,
    ClusterMetadata,
)

from headrace.cli import values
from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.model.errors import ConfigError, ErrorCode

# After this time without a response, the command fails.
ANSWER_TIMEOUT_S = 8.0
_CONNECT_TIMEOUT_S = 5.0

Client = TypeVar("Client")
Answer = TypeVar("Answer")

_UNREACHED = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
)


class Connection:
    """The cluster that the user named, and the clients for it."""

    def __init__(
        self, bootstrap: str, settings: Sequence[str] | None = None, file: Path | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.settings = dict(properties_of(file)) if file is not None else {}
        self.settings.update(values.pairs(settings or (), "-X"))
        # Only the last error: librdkafka repeats it with every attempt.
        self._last_error: KafkaError | None = None
        self._admin: AdminClient | None = None
        self._lost_all = False

    def admin(self) -> AdminClient:
        """One client for all requests: a response is lost if its client is collected first."""
        if self._admin is None:
            self._admin = self._made(AdminClient, {})
        return self._admin

    def producer(self, settings: Mapping[str, object]) -> Producer:
        """A producer that maps keys to the same partitions as Kafka's Java producer."""
        return self._made(Producer, {"partitioner": "murmur2_random", **settings})

    def consumer(self, settings: Mapping[str, object]) -> Consumer:
        # librdkafka requires a group ID, even if nothing is committed.
        return self._made(
            Consumer,
            {"group.id": "headrace-cli", "enable.auto.commit": False, **settings},
        )

    def setting(self, name: str) -> str | None:
        """A setting that the user gave with -X or in a file."""
        return self.settings.get(name)

    def metadata(self) -> ClusterMetadata:
        """The current brokers and topics of the cluster."""
        try:
            return self.admin().list_topics(timeout=ANSWER_TIMEOUT_S)
        except KafkaException as failure:
            raise self.failed(failure, "listing brokers and topics") from None

    def brokers(self) -> dict[str, tuple[str, int]]:
        """The address of each broker, by its ID as text."""
        nodes = self.metadata().brokers.values()
        return {str(node.id): (str(node.host), node.port) for node in nodes}

    def failed(self, failure: KafkaException | KafkaError, doing: str) -> CommandFailed:
        """The one-line error for what the client reported while ``doing`` something."""
        error = failure.args[0] if isinstance(failure, KafkaException) else failure
        if error.code() in _UNREACHED:
            why = self.last_trouble() or error.str()
            protocol = str(self.settings.get("security.protocol", "plaintext"))
            if protocol.lower() != "plaintext":
                # Something listens there, or the client would not have been created.
                return CommandFailed(
                    f"{doing}: no answer from {self.bootstrap} within {ANSWER_TIMEOUT_S:.0f} s, "
                    f"which may not support security.protocol={protocol} ({why})"
                )
            return self._unreached(
                f"{doing}: no answer from {self.bootstrap} within {ANSWER_TIMEOUT_S:.0f} s ({why})"
            )
        # The client's own errors rarely contain the cause.
        trouble = self.last_trouble() if error.code() < 0 else None
        return CommandFailed(f"{doing}: {explained(error)}{f' ({trouble})' if trouble else ''}")

    def last_trouble(self) -> str | None:
        """The last connection error, such as a host name that does not resolve."""
        if self._admin is not None:
            self._admin.poll(0)  # runs the error callback
        return None if self._last_error is None else str(self._last_error.str())

    def answer(self, future: "Future[Answer]", doing: str) -> Answer:
        """The broker's response. An error of the client is raised as CommandFailed."""
        try:
            return future.result(ANSWER_TIMEOUT_S + 2)
        except TimeoutError:
            raise self._unreached(f"{doing}: no answer from {self.bootstrap}") from None
        except KafkaException as failure:
            if failure.args[0].code() < 0:
                raise self.failed(failure, doing) from None
            raise

    def _made(self, kind: Callable[[dict[str, Any]], Client], own: dict[str, object]) -> Client:
        settings: dict[str, Any] = {
            "client.id": "headrace-cli",
            "log_level": 0,
            "error_cb": self._remember,
            "socket.connection.setup.timeout.ms": round(_CONNECT_TIMEOUT_S * 1000),
            **own,
            **self.settings,
            "bootstrap.servers": self.bootstrap,
        }
        # Before creating a client: one that cannot connect takes seconds to stop at Ctrl-C.
        self.reach()
        try:
            return kind(settings)
        except (KafkaException, ValueError, TypeError) as failure:
            reason = failure.args[0]
            text = reason.str() if isinstance(reason, KafkaError) else str(reason)
            raise CommandFailed(f"client settings: {text}", WRONG_USAGE) from None

    def has_lost_all_brokers(self) -> bool:
        """Whether all brokers became unreachable since the last call."""
        lost, self._lost_all = self._lost_all, False
        return lost

    def _remember(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._lost_all = True
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = error

    def reach(self) -> None:
        """Connect once before a client does, so that a refused connection fails immediately.

        The client would retry until its timeout, which helps a service but not a person.
        """
        reasons = []
        for address in self.bootstrap.split(","):
            why = why_unreachable(*parsed_address(address))
            if why is None:
                return
            reasons.append(f"{address.strip()}: {why}")
        raise self._unreached(f"cannot reach a broker ({'; '.join(reasons)})")

    def _unreached(self, what: str) -> CommandFailed:
        return CommandFailed(
            f"{what}. Start a broker with 'headrace serve', or name another one with -b HOST:PORT "
            "or HEADRACE_BOOTSTRAP"
        )


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C in a waiting producer.

    confluent-kafka 2.16 raises a SystemError without an explanation instead.
    """
    try:
        yield
    except SystemError as failure:
        if "without setting an exception" not in str(failure):
            raise
        raise KeyboardInterrupt from None


def why_unreachable(host: str, port: int) -> str | None:
    """Why no process accepts connections at an address; None if one does."""
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
    except OSError as failure:
        return failure.strerror or str(failure)
    return None


def parsed_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``, optionally after ``PROTOCOL://``."""
    bare = text.strip().rpartition("//")[2]
    host, colon, port = bare.rpartition(":")
    if not colon:
        host, port = bare, "9092"
    if not port.isdigit() or not host:
        raise values.wrong(f"-b {text!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)


def no_such_broker(broker: str, known: Iterable[str]) -> CommandFailed:
    """What every command says about a broker that does not exist."""
    return CommandFailed(
        f"broker {broker} does not exist; broker IDs in this cluster: {', '.join(sorted(known))}"
    )


def explained(error: KafkaError) -> str:
    """Kafka's name of the error, and the message of the broker or the client."""
    text: str = error.str().removeprefix("Broker: ").removeprefix("Local: ")
    return f"{code_name(error.code())}: {text}" if error.code() > 0 else text


def error_name(error: KafkaError) -> str:
    """Kafka's name of the error, or librdkafka's for an error of the client."""
    return code_name(error.code()) if error.code() > 0 else str(error.name())


def code_name(error_code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return ErrorCode(error_code).name
    except ValueError:
        return f"error {error_code}"


def properties_of(path: Path) -> dict[str, str]:
    from headrace.model.config import parse_properties

    try:
        return parse_properties(path.read_text("utf-8"), str(path))
    except OSError as failure:
        raise values.wrong(f"{path}: {failure.strerror}") from None
    except UnicodeDecodeError as failure:
        raise values.wrong(f"{path}: {failure}") from None
    except ConfigError as failure:
        raise values.wrong(str(failure)) from None
