"""One Spark session and one broker for all tests of the Spark source and sink.

The broker is the embedded node, unless HEADRACE_TEST_BOOTSTRAP names another Kafka; tests make
topics with unique names and do not delete them.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.demo import why_not
from tests.spark.kit import Collected, Topics, with_options

BATCHES = (1, 7)
MANY_BATCHES, ALL_ROUNDS = 1_000, 20

# Before a JVM starts: Spark's Python workers must be this interpreter, not the path's.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    missing = why_not() if ours else None
    if missing is not None:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=missing))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``batches``: into how many batches a test cuts its events; BATCHES of the module says how."""
    if "batches" in metafunc.fixturenames:
        counts = getattr(metafunc.module, "BATCHES", BATCHES)
        many = pytest.param(MANY_BATCHES, marks=pytest.mark.torture)
        has_all = metafunc.config.getoption("--torture-rounds") >= ALL_ROUNDS
        metafunc.parametrize("batches", [*counts, many] if has_all else counts, scope="module")


@pytest.fixture
def batch_counts(torture_rounds: int) -> tuple[int, ...]:
    """The same, for a test that compares what different numbers of batches give."""
    return (*BATCHES, MANY_BATCHES) if torture_rounds >= ALL_ROUNDS else BATCHES


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of the Kafka under test."""
    named = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if named:
        yield named
        return
    from headrace.testing import Broker

    # A separate process: the tests use much CPU in Python and would starve a thread.
    with Broker(process=True, config={"log.cleaner.backoff.ms": 200}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session", autouse=True)
def light_jvms() -> Iterator[None]:
    """Use a JVM for short runs: no slow compiler, and no garbage collector with own threads."""
    with pytest.MonkeyPatch.context() as patch:
        # Tests run so many queries that the JVM's cache for compiled code would be full.
        options = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
        patch.setenv("JDK_JAVA_OPTIONS", options)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.streaming.stopTimeout", "60s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect(spark: Any) -> str:
    """The address of a Spark Connect server in the JVM of the session."""
    services = spark._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
    service.start(spark._jsc.sc())
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A standalone cluster, for jobs that run as separate processes."""
    from tests.spark.standalone import running

    with running(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_leaked_threads_or_children() -> None:
    """The JVM and the Python workers that it starts live as long as the session."""


@pytest.fixture(autouse=True)
def no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture(scope="session")
def topics(bootstrap: str) -> Topics:
    return Topics(bootstrap)


@pytest.fixture
def read(spark: Any, bootstrap: str) -> Callable[..., Any]:
    """``read(subscribe="t", startingOffsets="earliest")`` as a batch."""

    def load(**options: Any) -> Any:
        return with_options(spark.read.format("headrace"), bootstrap, options).load()

    return load


@pytest.fixture
def read_stream(spark: Any, bootstrap: str) -> Callable[..., Any]:
    def load(**options: Any) -> Any:
        return with_options(spark.readStream.format("headrace"), bootstrap, options).load()

    return load


class SmallDisk:
    """A disk of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        (self.path / "filler").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        yield SmallDisk(disk)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    return Collected(tmp_path / "checkpoint")
