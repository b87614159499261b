"""Starts brokers as processes of their own, each from a property file.

DIR/server-1.properties    settings of broker 1, written at each start
DIR/broker-1               its data; headrace.log in it is what it prints
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.launch.child import Child

LOG_NAME = "headrace.log"


class BrokerProcess:
    """One broker. It ends when this process ends, however that happens."""

    def __init__(
        self, broker_id: int, directory: Path, listen: str, settings: Mapping[str, str]
    ) -> None:
        """Write the property file; ``listen`` is HOST:PORT, ``settings`` are the other settings."""
        self.broker_id = broker_id
        self.data = directory / f"broker-{broker_id}"
        self.properties = directory / f"server-{broker_id}.properties"
        self.log_path = self.data / LOG_NAME
        self.address = listen
        self._ready_file = directory / f".broker-{broker_id}.ready"
        self._child: Child | None = None
        self.data.mkdir(parents=True, exist_ok=True)
        self.settings = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{listen}",
            "log.dirs": str(self.data.absolute()),
            **settings,
        }
        write_properties(self.properties, self.settings)

    @property
    def child(self) -> Child:
        assert self._child is not None, "the broker was not started"
        return self._child

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_status is None

    def start(self) -> None:
        """Start the process; ``is_ready`` tells when it accepts clients."""
        self._ready_file.unlink(missing_ok=True)
        ready = ("--ready-file", str(self._ready_file))
        command = [sys.executable, "-m", "headrace", "serve", str(self.properties), *ready]
        self._child = Child(command, self.log_path)

    def is_ready(self) -> bool:
        if not self._ready_file.exists():
            return False
        self.address = self._ready_file.read_text().strip()
        return True

    def stop(self, timeout_s: float) -> None:
        """Shut it down cleanly; kill it if it has not ended in time."""
        if self._child is not None:
            self._child.stop(timeout_s)
        self._ready_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """As kill -9."""
        if self._child is not None:
            self._child.kill()
        self._ready_file.unlink(missing_ok=True)


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Write a property file that Kafka reads too."""
    lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in settings.items()]
    path.write_text("\n".join(lines) + "\n")
