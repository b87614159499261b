"""A real schema registry: Apicurio's, with the API of Confluent's; fetched once with Maven.

It stores its schemas in topics of the node under test. A Python environment beside it has
Confluent's serializers, which the project does not depend on.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

from bench.node import Node

VERSION = "3.0.9"  # the newest that runs on Java 17
HOME = Path(__file__).parents[2] / ".cache" / "schema-registry"
SEND_AVRO = Path(__file__).parent / "jobs" / "send_avro.py"


def missing() -> str | None:
    """Why the registry cannot run on this machine, or None."""
    needed = ["java"] if (HOME / "ready").exists() else ["java", "mvn"]
    absent = [name for name in needed if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} on the PATH" if absent else None


def fetch() -> None:
    if (HOME / "ready").exists():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    app = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={app}", f"-DoutputDirectory={HOME}"],
        cwd=HOME,
        check=True,
    )
    (packed,) = HOME.glob("*.tar.gz")
    shutil.unpack_archive(packed, HOME / "app", filter="data")
    packed.unlink()
    venv.create(HOME / "env", with_pip=True)
    packages = ["confluent-kafka[avro,schemaregistry]"]
    python = HOME / "env" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    (HOME / "ready").touch()


class Registry:
    """One registry process; ``address`` is what users give as value.avro.registry."""

    def __init__(self, bootstrap: str) -> None:
        fetch()
        port = Node.free_port()
        self.address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": bootstrap,
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        (program,) = (HOME / "app").glob("*-runner.jar")
        given = [f"-D{name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(
            ["java", "-Xmx512m", *given, "-jar", str(program)],
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait(time.monotonic() + 180)
        except BaseException:
            self.close()
            raise

    def _wait(self, give_up_at: float) -> None:
        while True:
            try:
                with urllib.request.urlopen(f"{self.address}/subjects", timeout=5):
                    return
            except OSError as not_yet:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    self._log.seek(0)
                    raise RuntimeError(f"no registry: {self._log.read()[-3000:]}") from not_yet
                time.sleep(0.2)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def send_avro(bootstrap: str, registry: str, topic: str, schema: str, values: str) -> None:
    """Send values, a JSON list, with Confluent's serializer, which registers the schema."""
    python = str(HOME / "env" / "bin" / "python")
    line = [python, str(SEND_AVRO), bootstrap, registry, topic, schema, values]
    subprocess.run(line, check=True, timeout=120, stdout=sys.stderr)
