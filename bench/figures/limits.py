"""Limits of the machine, and the gain of sendfile: the broker compared with plain system calls."""

import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

from bench import load, topics
from bench.client import Client
from bench.node import Node, PlainReadNode
from bench.report import Row
from bench.run import Run, Samples, cpu_of

_CHUNK = 1 << 20


def raw_limit(run: Run) -> list[Row]:
    """Headrace next to a loop that only copies socket → file, and file → socket with sendfile."""
    samples = Samples("limit")
    count = run.sized(1_000_000, 50_000)
    size = count * 1024
    with run.node("headrace") as node:
        for round_number in range(run.rounds + 1):
            topic = f"limit-{round_number}"
            topics.create(node.address, topic)
            cpu: list[float] = []
            with cpu_of(node, cpu):
                produced = load.produce(node.address, topic, count, 1024)
            with cpu_of(node, cpu):
                consumed = load.consume(node.address, topic, count)
            topics.delete(node, topic)
            file = run.scratch / "raw"
            into_file = _timed(_copy_to_file, file, size, _send_zeros)
            from_file = _timed(_send_file, file, size, _discard)
            file.unlink()
            for metric, broker, raw in (
                ("in", (produced["mb_per_s"], cpu[0] / size * 1e9), into_file),
                ("out", (consumed["mb_per_s"], cpu[1] / size * 1e9), from_file),
            ):
                run.say(f"limit {metric}: broker {broker}, bare {raw} (MB/s, CPU-s/GB)")
                if round_number:
                    for side, (rate, cost) in (("headrace", broker), ("raw", raw)):
                        samples.add(side, metric, rate)
                        samples.add(side, f"{metric}, CPU", cost)
    return [
        samples.row("in", "MB/s", peer="raw", beside="socket → file"),
        samples.row("in, CPU", "s/GB", peer="raw", beside="socket → file"),
        samples.row("out", "MB/s", peer="raw", beside="sendfile"),
        samples.row("out, CPU", "s/GB", peer="raw", beside="sendfile"),
    ]


def _timed(
    serve: Callable[[socket.socket, Path, int], None],
    file: Path,
    size: int,
    other_end: Callable[[socket.socket, int], None],
) -> tuple[float, float]:
    """Run one end of a connection here, the other in a child. Return MB/s and CPU-s per GB."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with socket.create_connection(listener.getsockname()[:2]) as link:
                    other_end(link, size)
                status = 0
            finally:
                os._exit(status)
        link, _ = listener.accept()
    with link:
        start, start_cpu = time.perf_counter(), _own_cpu()
        serve(link, file, size)
        seconds, cpu = time.perf_counter() - start, _own_cpu() - start_cpu
    os.waitpid(child, 0)
    return size / seconds / 1e6, cpu / size * 1e9


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def _send_zeros(link: socket.socket, size: int) -> None:
    chunk = bytes(_CHUNK)
    for start in range(0, size, _CHUNK):
        link.sendall(chunk[: size - start])


def _discard(link: socket.socket, size: int) -> None:
    buffer = bytearray(_CHUNK)
    while size > 0:
        size -= link.recv_into(buffer)


def _copy_to_file(link: socket.socket, path: Path, size: int) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    position = 0
    while position < size:
        count = link.recv_into(buffer, 0, socket.MSG_WAITALL)
        position += os.pwrite(file, buffer[:count], position)
    os.close(file)


def _send_file(link: socket.socket, path: Path, size: int) -> None:
    file = os.open(path, os.O_RDONLY)
    position = 0
    while position < size:
        position += os.sendfile(link.fileno(), file, position, _CHUNK)
    os.close(file)


def sendfile(run: Run) -> list[Row]:
    """The same reads with sendfile and with read and send, from 7 MB of log to 1 GB."""
    samples = Samples("sendfile")
    megabytes = [7, 50] if run.quick else [7, 50, 250, 1000]
    sides = {
        "headrace": run.node("headrace"),
        "plain": run.node("plain", kind=PlainReadNode),
    }
    try:
        for node in sides.values():
            node.start()
            for size in megabytes:
                topics.create(node.address, f"log-{size}")
                load.produce(node.address, f"log-{size}", size * 1000, 1000)
        for round_number in range(run.rounds + 1):
            for size in megabytes:
                for side, node in sides.items():
                    rate, cost = _walk(run, node, f"log-{size}", size)
                    run.say(f"sendfile {side} {size} MB: {rate:.0f} MB/s, {cost:.3f} CPU-s/GB")
                    if round_number:
                        samples.add(side, f"{size} MB", rate)
                        samples.add(side, f"{size} MB, CPU", cost)
    finally:
        for node in sides.values():
            node.stop()
    return [
        samples.row(f"{size} MB{suffix}", unit, peer="plain", beside="read + send")
        for size in megabytes
        for suffix, unit in (("", "MB/s"), (", CPU", "s/GB"))
    ]


def _walk(run: Run, node: Node, topic: str, megabytes: int) -> tuple[float, float]:
    """Read a log from start to end, often enough to measure it. Return MB/s and CPU-s per GB."""
    passes = max(1, run.sized(2000, 100) // megabytes)
    client = Client(node.address)
    offset_end = megabytes * 1000
    client.walk(topic, offset_end, 4 * _CHUNK)
    cpu: list[float] = []
    start, total = time.perf_counter(), 0
    with cpu_of(node, cpu):
        for _ in range(passes):
            total += client.walk(topic, offset_end, 4 * _CHUNK)
    seconds = time.perf_counter() - start
    client.close()
    return total / seconds / 1e6, cpu[0] / total * 1e9
