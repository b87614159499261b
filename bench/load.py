"""The C load generators: built on first use, with the same settings for every broker."""

import contextlib
import hashlib
import json
import shutil
import subprocess
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.client import Client

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "bench"

# Large batches, a short linger, a queue that fits in warm memory, and no report for delivered
# records: the client is as cheap as possible, so that the broker is the bottleneck.
FAST_PRODUCER = {
    "delivery.report.only.error": "true",
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "5",
    "batch.num.messages": "100000",
    "batch.size": "1000000",
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "65536",
}
FAST_CONSUMER = {
    "fetch.message.max.bytes": "4000000",
    "fetch.max.bytes": "50000000",
    "fetch.wait.max.ms": "100",
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "200000",
    "queued.min.messages": "1000000",
}
QUICK_PRODUCER = {"enable.idempotence": "true", "acks": "all", "linger.ms": "0"}
QUICK_CONSUMER = {"fetch.wait.max.ms": "100"}


class LoadFailed(Exception):
    """The load generator failed; the message holds its output."""


def librdkafka() -> Path:
    """The shared library inside the installed confluent-kafka."""
    import confluent_kafka

    directory = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(directory.glob("librdkafka*.so*"))
    if not found:
        raise LoadFailed(f"confluent-kafka has no librdkafka in {directory}")
    return found[0]


def program() -> Path:
    """The path of the load generator; compiles it if source or library have changed."""
    library = librdkafka()
    options = [str(library), f"-Wl,-rpath,{library.parent}", "-lpthread"]
    return compiled("load", [HERE / "load.c", HERE / "rdkafka.h"], options)


def compiled(name: str, sources: list[Path], options: list[str]) -> Path:
    """Compile the first of ``sources``, which includes the others."""
    if shutil.which("gcc") is None:
        raise LoadFailed(f"building {name} requires gcc")
    state = hashlib.sha256(b"".join(s.read_bytes() for s in sources) + " ".join(options).encode())
    built = CACHE / f"{name}-{state.hexdigest()[:12]}"
    if not built.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        line = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(built), str(sources[0])]
        subprocess.run([*line, *options], check=True)
    return built


def command(
    mode: str,
    address: str,
    *,
    topic: str = "",
    count: int = 0,
    seconds: float = 0,
    size: int = 0,
    partitions: int = 1,
    keys: int = 0,
    rate: int = 0,
    samples: Path | None = None,
    producer: dict[str, str] | None = None,
    consumer: dict[str, str] | None = None,
) -> list[str]:
    """The command line of one run, for callers that run it in the background."""
    line = [str(program()), mode, "-b", address, "-p", str(partitions)]
    for flag, value in (
        ("-t", topic),
        ("-n", count),
        ("-d", seconds),
        ("-s", size),
        ("-k", keys),
        ("-r", rate),
        ("-o", samples),
    ):
        if value:
            line += [flag, str(value)]
    for flag, settings in (("-P", producer or {}), ("-C", consumer or {})):
        for name, setting in settings.items():
            line += [flag, f"{name}={setting}"]
    return line


def answer(stdout: str) -> dict[str, Any]:
    """Parse the line of JSON that a run prints."""
    result: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
    return result


def run(mode: str, address: str, *, limit_s: float = 300, **what: Any) -> dict[str, Any]:
    """Run the load generator and return its results."""
    return _measured(mode, command(mode, address, **what), address, limit_s)


def _measured(mode: str, line: list[str], address: str, limit_s: float) -> dict[str, Any]:
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        raise LoadFailed(f"{mode} on {address} took more than {limit_s:.0f} s") from late
    if done.returncode != 0:
        raise LoadFailed(f"{mode} on {address}: {done.stdout} {done.stderr}".strip())
    return answer(done.stdout)


def produce_lean(address: str, topic: str, count: int, size: int) -> dict[str, Any]:
    """Produce with ``produce.c``: the broker is the bottleneck, at any record size."""
    host, _, port = address.rpartition(":")
    with contextlib.closing(Client(address)) as client:
        identity = client.identity()
    built = compiled("produce", [HERE / "produce.c", HERE / "bare.h"], [])
    line = [str(built), host, port, topic, *map(str, (count, size, *identity))]
    return _measured("produce", line, address, 300)


def produce(address: str, topic: str, count: int, size: int, **what: Any) -> dict[str, Any]:
    """Produce ``count`` records as fast as acknowledgements allow."""
    settings = FAST_PRODUCER | what.pop("producer", {})
    return run("produce", address, topic=topic, count=count, size=size, producer=settings, **what)


def consume(address: str, topic: str, count: int, **what: Any) -> dict[str, Any]:
    """Consume the first ``count`` records of a topic."""
    settings = FAST_CONSUMER | what.pop("consumer", {})
    return run("consume", address, topic=topic, count=count, consumer=settings, **what)


def latency(mode: str, address: str, topic: str, **what: Any) -> dict[str, Any]:
    """One record at a time: ``ack`` until acknowledged, ``e2e`` until a consumer has it."""
    return run(
        mode,
        address,
        topic=topic,
        size=what.pop("size", 100),
        producer=QUICK_PRODUCER,
        consumer=QUICK_CONSUMER,
        **what,
    )


def read_samples(path: Path) -> list[tuple[float, float]]:
    """Pairs of (sent at, took) in seconds; the first on the clock of ``time.monotonic``."""
    flat = array("d", path.read_bytes())
    return list(zip(flat[::2], flat[1::2], strict=True))


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` of all values are, computed as in load.c."""
    ordered = sorted(values)
    return ordered[int(len(ordered) * share)]
