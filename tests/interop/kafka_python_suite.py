"""kafka-python's own integration tests, from its source package, run against Headrace.

    python tests/interop/kafka_python_suite.py HOST:PORT      prints the outcome of every test

The suite is in ``.cache/kafka-python-suite`` with a separate environment, because it pins no
versions and would bring its plugins into ours. The broker needs ``num.partitions=4``. Tests of
SASL and TLS are excluded. One helper is not in the source package; ``_SERVICE`` replaces it.
"""

import os
import subprocess
import sys
import tarfile
import venv
import xml.etree.ElementTree
from collections.abc import Collection
from pathlib import Path

SUITE_VERSION = "3.0.12"
PROJECT = Path(__file__).parent.parent.parent
CACHE = PROJECT / ".cache" / "kafka-python-suite" / SUITE_VERSION
SOURCE = CACHE / f"kafka_python-{SUITE_VERSION}"

_NEEDED = ("pytest", "pytest-mock", "pytest-timeout", "py")
_CODECS = ("lz4", "zstandard", "python-snappy", "crc32c", "xxhash")
_LEFT_OUT = ("test_sasl_integration.py", "test_ssl_integration.py")

# The suite starts brokers through this module, unless it gets the address of a running one.
_SERVICE = """\
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = stop = dump_logs = open

    def wait_for(self, pattern, timeout=30):
        return True


class SpawnedService:
    def __init__(self, *_, **__):
        raise RuntimeError("these tests require a running broker")
"""


def _python() -> Path:
    return CACHE / "venv" / "bin" / "python"


def fetch() -> None:
    """Create the environment and unpack the suite, once."""
    if (SOURCE / "test" / "service.py").exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    venv.create(CACHE / "venv", with_pip=True, clear=True)
    pip = [str(_python()), "-m", "pip", "-q", "--disable-pip-version-check"]
    package = f"kafka-python=={SUITE_VERSION}"
    subprocess.run([*pip, "install", package, *_NEEDED, *_CODECS], check=True)
    download = [*pip, "download", "--no-deps", "--no-binary", "kafka-python", "-d", str(CACHE)]
    subprocess.run([*download, package], check=True)
    with tarfile.open(CACHE / f"kafka_python-{SUITE_VERSION}.tar.gz") as archive:
        archive.extractall(CACHE, filter="data")
    (SOURCE / "test" / "__init__.py").touch()
    # Written last: its presence says that the suite is complete.
    (SOURCE / "test" / "service.py").write_text(_SERVICE)


def run(
    address: str,
    *,
    left_out: Collection[str] = (),
    kafka_version: str = "4.1.0",
    limit_s: float = 900,
) -> dict[str, str]:
    """Run the suite. Return "passed", "failed" or "skipped" by test, as ``file::test``.

    ``kafka_version`` is the broker version that the client assumes; it decides the versions of the
    requests. A test of an API that is not supported waits without end and blocks the suite, so
    such tests must be excluded by name.
    """
    fetch()
    (CACHE / "root").mkdir(exist_ok=True)
    report = CACHE / f"report-{os.getpid()}.xml"
    line = [str(_python()), "-m", "pytest", "-q", "--timeout=60", f"--junitxml={report}"]
    line += ["-p", "no:logging", "-p", "no:cacheprovider", "--tb=short", "test/integration"]
    for name in _LEFT_OUT:
        line += ["--deselect", f"test/integration/{name}"]
    for test in left_out:
        file, _, name = test.partition("::")
        line += ["--deselect", f"test/integration/{file}.py::{name}"]
    environment = os.environ | {
        "KAFKA_VERSION": kafka_version,
        "KAFKA_URI": f"kafka://{address}",
        "KAFKA_ROOT": str(CACHE / "root"),
    }
    # The options of the pytest that runs this must not apply to the suite.
    environment.pop("PYTEST_ADDOPTS", None)
    with (CACHE / "output.txt").open("w") as output:
        subprocess.run(
            line, cwd=SOURCE, env=environment, stdout=output, stderr=output, timeout=limit_s
        )
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None:
            outcome = "skipped"
        file = case.attrib["classname"].rpartition(".")[2]
        outcomes[f"{file}::{case.attrib['name']}"] = outcome
    report.unlink()
    return outcomes


if __name__ == "__main__":
    for test, outcome in sorted(run(sys.argv[1]).items()):
        print(f"{outcome:8} {test}")
