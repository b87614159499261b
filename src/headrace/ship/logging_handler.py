"""A handler for Python's ``logging`` that sends records to a topic and never blocks the program.

    logging.getLogger().addHandler(LoggingHandler("127.0.0.1:9092", "logs"))

Each record becomes a JSON object. A thread sends them in batches. If the queue is full, because
no broker answers, records are dropped and counted; the topic gets one record with their number as
soon as there is room again.
"""

import atexit
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaException, Producer

from headrace.ship.sender import PRODUCER_SETTINGS

_OWN_LOGGER = "headrace.ship"
_WAIT_S = 0.2
# A record has these attributes anyway; others come from ``extra``.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class LoggingHandler(logging.Handler):
    """Sends log records to ``topic``.

    ``queue_size`` bounds the records that wait. ``flush_s`` bounds how long ``close``, and so the
    exit of the program, waits for acknowledgements. ``settings`` are client settings by their
    librdkafka names. ``dropped`` and ``sent`` count records.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        level: int = logging.NOTSET,
        queue_size: int = 10_000,
        flush_s: float = 5.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(level)
        self.dropped = 0  # never sent, or refused by the broker
        self.sent = 0  # acknowledged
        self._topic = topic
        self._flush_s = flush_s
        self._host = socket.gethostname()
        self._queue: deque[bytes] = deque()
        self._queue_size = queue_size
        self._reported = 0
        self._unacknowledged = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._producer = Producer(
            {
                **PRODUCER_SETTINGS,
                "client.id": "headrace-logging",
                "queue.buffering.max.messages": queue_size,
                "log_level": 0,
                **(settings or {}),
                "bootstrap.servers": bootstrap_servers,
            }
        )
        # A daemon: at exit, close waits for it, but not longer than flush_s.
        self._thread = threading.Thread(target=self._run, name="headrace-logging", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; drop it if the queue is full or the handler is closed."""
        if self._closing.is_set() or len(self._queue) >= self._queue_size:
            self.dropped += 1
            return
        try:
            # Encoded here: the program may change the arguments before the record is sent.
            value = self._value(record, record.getMessage())
        except Exception:  # noqa: BLE001  # logging's rule: a bad record never harms the program
            self.handleError(record)
            return
        self._queue.append(value)
        self._wake.set()

    def flush(self) -> None:
        """Wait until all records are acknowledged, at most ``flush_s``."""
        give_up_at = time.monotonic() + self._flush_s
        while (self._queue or self._unacknowledged) and time.monotonic() < give_up_at:
            if not self._thread.is_alive():
                return
            self._wake.set()
            time.sleep(0.01)

    def close(self) -> None:
        """Send what is queued, within ``flush_s``. What is left is counted as dropped."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        self._thread.join(self._flush_s + 1)
        atexit.unregister(self.close)
        super().close()

    # --- the thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(_WAIT_S)
            self._wake.clear()
            self._report_dropped()
            self._send_queued()
            self._producer.poll(0)
        give_up_at = time.monotonic() + self._flush_s
        while (self._queue or self._unacknowledged) and time.monotonic() < give_up_at:
            self._send_queued()
            self._producer.flush(_WAIT_S)
        self._producer.purge()
        self._producer.flush(_WAIT_S)  # counts what was purged
        self.dropped += len(self._queue)
        self._queue.clear()

    def _send_queued(self) -> None:
        """Send what is queued, until the producer is full."""
        while self._queue:
            if not self._send(self._queue[0]):
                return
            self._queue.popleft()

    def _send(self, value: bytes) -> bool:
        try:
            self._producer.produce(self._topic, value, on_delivery=self._delivered)
        except BufferError:
            self._producer.poll(_WAIT_S)
            return False
        except KafkaException:
            self.dropped += 1  # above all a record that is too large
            return True
        self._unacknowledged += 1
        return True

    def _delivered(self, error: object, _: object) -> None:
        self._unacknowledged -= 1
        if error is None:
            self.sent += 1
        else:
            self.dropped += 1

    def _report_dropped(self) -> None:
        """Tell the readers of the topic that records are missing."""
        missing = self.dropped - self._reported
        if not missing:
            return
        warning = logging.makeLogRecord(
            {
                "name": _OWN_LOGGER,
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "dropped": missing,
            }
        )
        message = f"{missing:,} log records were dropped: queue full, or refused by the broker"
        if self._send(self._value(warning, message)):
            self._reported += missing

    def _value(self, record: logging.LogRecord, message: str) -> bytes:
        """A record as JSON."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            "host": self._host,
            "process": record.process,
            "thread": record.threadName,
            "file": record.pathname,
            "line": record.lineno,
        }
        if record.exc_text:
            fields["exception"] = record.exc_text
        elif record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return json.dumps(fields, default=str, ensure_ascii=False).encode("utf-8", "replace")
