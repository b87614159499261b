"""What all tests share: profiles, the number of torture rounds, no leaks and no stale views.

A test that leaves a thread, a child process or a file descriptor behind fails: what leaks in a
test leaks in somebody's service.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from headrace.launch.java import JavaMissing
from headrace.launch.zookeeper import ZooKeeperServer, write_config
from headrace.net.buffers import Buffer, BufferPool
from tests.fakes.leaks import nothing_left_behind

# In CI the examples are the same every time, so that a red run can be run again; on a developer's
# machine every run tries others.
settings.register_profile(
    "headrace", deadline=None, print_blob=True, derandomize="CI" in os.environ
)
# For the gate that one waits for; all examples come with make test.
settings.register_profile("gate", settings.get_profile("headrace"), max_examples=20)
settings.load_profile("headrace")


OVERWRITTEN_SIZE = 1 << 14
ROUNDS_IN_MAKE_TEST = 2

# A run in the background of a shell has SIGINT ignored and one under nohup SIGHUP, and so would
# every program that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torture-rounds",
        type=int,
        default=ROUNDS_IN_MAKE_TEST,
        help="rounds of each torture test (all: 20)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip long tests before their fixtures start anything."""
    is_torture = config.getoption("--torture-rounds") > ROUNDS_IN_MAKE_TEST
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.torture)
            if not is_torture:
                item.add_marker(pytest.mark.skip(reason="takes long; make torture runs it"))


@pytest.fixture
def torture_rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--torture-rounds"))


@pytest.fixture(scope="session")
def is_torture(request: pytest.FixtureRequest) -> bool:
    """Whether the torture tests run in their long form."""
    return int(request.config.getoption("--torture-rounds")) > ROUNDS_IN_MAKE_TEST


@pytest.fixture(autouse=True, scope="session")
def returned_buffers_are_overwritten() -> Iterator[None]:
    """Who keeps a view into a receive buffer for longer than the turn finds nonsense in it.

    In service it finds what another client sent, but only if both came in the same moment.
    """
    give_back = BufferPool.give_back

    def overwrite_and_give_back(pool: BufferPool, buffer: Buffer) -> None:
        beginning = buffer.view[:OVERWRITTEN_SIZE]
        beginning[:] = b"\xee" * len(beginning)
        give_back(pool, buffer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BufferPool, "give_back", overwrite_and_give_back)
        yield


@pytest.fixture(scope="session")
def zookeeper_or_none(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One ZooKeeper for all tests of a session, or the reason why there is none.

    A module whose tests use it now and then requests it for all, so that it starts before the
    first test counts its child processes.
    """
    with ZooKeeperServer(write_config(tmp_path_factory.mktemp("zookeeper"))) as server:
        try:
            server.start()
        except JavaMissing as missing:
            yield missing
            return
        server.wait_ready()
        yield server


@pytest.fixture
def zookeeper(zookeeper_or_none: object) -> ZooKeeperServer:
    if isinstance(zookeeper_or_none, JavaMissing):
        pytest.skip(str(zookeeper_or_none))
    assert isinstance(zookeeper_or_none, ZooKeeperServer)
    return zookeeper_or_none


@pytest.fixture(autouse=True)
def no_leaked_threads_or_children() -> Iterator[None]:
    with nothing_left_behind():
        yield
