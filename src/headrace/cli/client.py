"""The stock client under the commands: where it connects, how it is set, what its errors say.

librdkafka's own log lines are kept quiet; what they would say comes out once,
as the reason in our one-line error.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    AdminClient,
    ClusterMetadata,
)

from headrace.cli import values
from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.model.errors import ErrorCode

# Within this a broker has answered, or the user is told that it has not.
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
    """One cluster as the user named it, and the clients made for it."""

    def __init__(
        self, bootstrap: str, settings: Sequence[str] | None = None, file: Path | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self._settings = dict(_from_file(file)) if file is not None else {}
        self._settings.update(values.pairs(settings or (), "-X"))
        # Only the latest matters: librdkafka repeats the same one with every attempt.
        self._last_error: KafkaError | None = None
        self._admin: AdminClient | None = None
        self._lost_all = False

    def admin(self) -> AdminClient:
        """One for all questions: an answer is lost if its client is collected before it."""
        if self._admin is None:
            self._admin = self._made(AdminClient, {})
        return self._admin

    def producer(self, settings: Mapping[str, object]) -> Producer:
        """A producer whose keys land where Kafka's Java producer puts them."""
        return self._made(Producer, {"partitioner": "murmur2_random", **settings})

    def consumer(self, settings: Mapping[str, object]) -> Consumer:
        # librdkafka insists on a group id, even where nothing is ever committed.
        return self._made(
            Consumer,
            {"group.id": "headrace-cli", "enable.auto.commit": False, **settings},
        )

    def setting(self, name: str) -> str | None:
        """What the user gave with -X or in a file."""
        return self._settings.get(name)

    def metadata(self) -> ClusterMetadata:
        """The brokers and topics of the cluster as it is now."""
        try:
            return self.admin().list_topics(timeout=ANSWER_TIMEOUT_S)
        except KafkaException as failure:
            raise self.failed(failure, "asking for brokers and topics") from None

    def brokers(self) -> dict[str, tuple[str, int]]:
        """The address of each broker, by its number written as text."""
        nodes = self.metadata().brokers.values()
        return {str(node.id): (str(node.host), node.port) for node in nodes}

    def failed(self, failure: KafkaException | KafkaError, doing: str) -> CommandFailed:
        """The one line for what the client reported while ``doing`` something."""
        error = failure.args[0] if isinstance(failure, KafkaException) else failure
        if error.code() in _UNREACHED:
            why = self.last_trouble() or error.str()
            protocol = str(self._settings.get("security.protocol", "plaintext"))
            if protocol.lower() != "plaintext":
                # Somebody is there, or no client would have been made.
                return CommandFailed(
                    f"{doing}: no answer from {self.bootstrap} within {ANSWER_TIMEOUT_S:.0f} s, "
                    f"which may not speak security.protocol={protocol} ({why})"
                )
            return self._unreached(
                f"{doing}: no answer from {self.bootstrap} within {ANSWER_TIMEOUT_S:.0f} s ({why})"
            )
        # Where the client gave up by itself, its own words rarely tell what stood in the way.
        trouble = self.last_trouble() if error.code() < 0 else None
        return CommandFailed(f"{doing}: {explained(error)}{f' ({trouble})' if trouble else ''}")

    def last_trouble(self) -> str | None:
        """What last went wrong between a client and a broker, such as a name that is not known."""
        if self._admin is not None:
            self._admin.poll(0)  # hands us what it has seen
        return None if self._last_error is None else str(self._last_error.str())

    def answer(self, future: "Future[Answer]", doing: str) -> Answer:
        """What the broker answered; an error of ours is raised, the broker's is the caller's."""
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
            **self._settings,
            "bootstrap.servers": self.bootstrap,
        }
        # Before there is a client: one that cannot connect takes seconds to give up at Ctrl-C.
        self._reach()
        try:
            return kind(settings)
        except (KafkaException, ValueError, TypeError) as failure:
            reason = failure.args[0]
            text = reason.str() if isinstance(reason, KafkaError) else str(reason)
            raise CommandFailed(f"client settings: {text}", WRONG_USAGE) from None

    def has_lost_all_brokers(self) -> bool:
        """Whether every broker went away since this was last asked."""
        lost, self._lost_all = self._lost_all, False
        return lost

    def _remember(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._lost_all = True
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = error

    def _reach(self) -> None:
        """Ask the door before the client does: a refused connection is known at once.

        The client would try again and again until its own timeout, which helps
        a service and annoys a person.
        """
        reasons = []
        for address in self.bootstrap.split(","):
            try:
                host, port = parsed_address(address)
                socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
            except OSError as failure:
                reasons.append(f"{address.strip()}: {failure.strerror or failure}")
            else:
                return
        self._unreached_now("; ".join(reasons))

    def _unreached_now(self, why: str) -> NoReturn:
        raise self._unreached(f"cannot reach a broker ({why})")

    def _unreached(self, what: str) -> CommandFailed:
        return CommandFailed(
            f"{what}. Start one with 'headrace serve', or name another with -b HOST:PORT "
            "or HEADRACE_BOOTSTRAP"
        )


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C while a producer waits: the client loses it, and a SystemError without a word comes.

    Seen with confluent-kafka 2.16; a KeyboardInterrupt passes as it is.
    """
    try:
        yield
    except SystemError as failure:
        if "without setting an exception" not in str(failure):
            raise
        raise KeyboardInterrupt from None


def parsed_address(text: str) -> tuple[str, int]:
    """``host:port``, ``[::1]:port``, with an optional ``PROTOCOL://`` in front."""
    bare = text.strip().rpartition("//")[2]
    host, colon, port = bare.rpartition(":")
    if not colon:
        host, port = bare, "9092"
    if not port.isdigit() or not host:
        raise values.wrong(f"-b {text!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)


def explained(error: KafkaError) -> str:
    """Kafka's name of the error, then what the broker or the client says about it."""
    text: str = error.str().removeprefix("Broker: ").removeprefix("Local: ")
    return f"{code_name(error.code())}: {text}" if error.code() > 0 else text


def error_name(error: KafkaError) -> str:
    """Kafka's name of the error, or librdkafka's where it is the client's own."""
    return code_name(error.code()) if error.code() > 0 else str(error.name())


def code_name(error_code: int) -> str:
    """Kafka's name of an error that came with this number."""
    try:
        return ErrorCode(error_code).name
    except ValueError:
        return f"error {error_code}"


def _from_file(path: Path) -> dict[str, str]:
    from headrace.model.config import parse_properties

    try:
        text = path.read_text("utf-8")
    except OSError as failure:
        raise values.wrong(f"{path}: {failure.strerror}") from None
    return parse_properties(text)
