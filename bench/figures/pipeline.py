"""The five jobs and the load together, at a steady rate of events: lag, freshness and alerts."""

import bisect
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer

from bench.report import Row, value_at_most
from bench.run import Run, Samples, wait_until
from headrace.client.cluster import ClientSettings
from headrace.model.ids import TopicPartition
from headrace.pipeline.events import SCHEMAS
from headrace.spark.cluster import LATEST, Cluster

_COMMIT_AGE_S = 10
_LOOK_EVERY_S = 0.25
# Guessed passwords that make an incident (security.RULES), and the time between two attacks.
_GUESSES = 10
_ATTACK_EVERY_S = 2.0

_BACKLOG = "largest backlog at the end"
_LOADED = "load, freshness p99"
_COMPUTED = "jobs, freshness p99"
_ALERTED = "alert p95"
_CORES = "cores in use, by others too"
_UNITS = {_CORES: ""}


class _Limits(NamedTuple):
    """Of one rate of events per second."""

    rate: int
    freshness_s: float
    alert_s: float


_CATCH_UP_RATE = 5_000

_LIMITS = (_Limits(20_000, 30, 6), _Limits(5_000, 10, 5))


def live(run: Run) -> list[Row]:
    """Five jobs and the load on two cores, with broker and generator, for ten minutes per rate.

    Freshness is the age of a record when it is in a table: by the load, and by the queries of the
    jobs. ``sessions`` has a trigger of 30 seconds, and is not among them. An alert is timed from
    the tenth login that failed to the moment at which a consumer of the topic sees it.
    """
    samples = Samples("pipeline-live")
    rows = []
    for limits in _LIMITS:
        name = f"{limits.rate:,} events/s: "
        with _running(run, limits.rate) as watched:
            watched.go_on(run.sized(120, 60))  # the JVM compiles in the first batches
            watched.begin()
            watched.go_on(run.sized(600, 60))  # the interval that is measured
            found = watched.end()
        run.say(f"pipeline-live {name}{json.dumps(found)}")
        for metric, value in found.items():
            samples.add("headrace", name + metric, value)
        targets = {
            _BACKLOG: value_at_most(limits.freshness_s),
            _LOADED: value_at_most(limits.freshness_s),
            _ALERTED: value_at_most(limits.alert_s),
        }
        if limits.freshness_s > 2 * _COMMIT_AGE_S:  # queries have triggers of up to 10 s
            targets[_COMPUTED] = value_at_most(limits.freshness_s)
        rows += [
            samples.row(
                name + metric,
                _UNITS.get(metric, "s"),
                *([targets[metric]] if metric in targets else []),
            )
            for metric in found
        ]
    return rows


def catching_up(run: Run) -> list[Row]:
    """The freshness of the jobs while a load that was stopped for an hour catches up.

    Compared with the freshness before it was stopped, with the load running.
    """
    samples = Samples("pipeline-catch-up")
    ratio = "jobs, freshness p99: while the load catches up / before"
    measured_s = run.sized(300, 60)
    with _running(run, _CATCH_UP_RATE) as watched:
        watched.go_on(run.sized(120, 60))  # the JVM compiles in the first batches
        watched.begin()
        watched.go_on(measured_s)  # the interval that is measured
        before = watched.end()
        watched.toggle_load()
        watched.go_on(run.sized(3_600, 60))  # the load is stopped
        watched.begin()
        watched.toggle_load()
        watched.go_on(measured_s)  # the interval that is measured
        after = watched.end()
    run.say(f"pipeline-catch-up before {json.dumps(before)}, after {json.dumps(after)}")
    samples.add("headrace", ratio, after[_COMPUTED] / before[_COMPUTED])
    for name, found in (("before", before), ("while it catches up", after)):
        samples.add("headrace", f"{_COMPUTED} {name}", found[_COMPUTED])
        samples.add("headrace", f"{_ALERTED} {name}", found[_ALERTED])
    rows = [samples.row(ratio, "×", value_at_most(1.2))]
    for name in ("before", "while it catches up"):
        rows += [samples.row(f"{metric} {name}", "s") for metric in (_COMPUTED, _ALERTED)]
    return rows


def week(run: Run) -> list[Row]:
    """State of all queries over a simulated week, day by day: it does not grow."""
    samples = Samples("pipeline-state")
    keys, sizes = "keys after day 7 / after day 1", "checkpoints after day 7 / after day 1"
    with run.node("headrace") as node:
        command = [sys.executable, "-m", "bench.pipeline_week", node.address]
        command += [str(run.scratch / "week"), str(run.sized(200_000, 5_000))]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    days = [json.loads(line) for line in done.stdout.splitlines()]
    for day in days:
        run.say(f"pipeline-state: {day['keys']:,} keys, {day['checkpoint_mb']:.1f} MB")
    for metric, name in ((keys, "keys"), (sizes, "checkpoint_mb")):
        samples.add("headrace", metric, days[-1][name] / days[0][name])
    return [samples.row(metric, "×", value_at_most(1.2)) for metric in (keys, sizes)]


@contextlib.contextmanager
def _running(run: Run, rate: int) -> "Iterator[_Watched]":
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(run.node("headrace"))
        _process(
            stack,
            ["-m", "headrace", "pipeline", "generate"] + ["--rate", str(rate), "-b", node.address],
            run.scratch / f"generate-{rate}.log",
        )
        cluster = stack.enter_context(contextlib.closing(Cluster(ClientSettings(node.address))))
        wait_until(
            lambda: all(not one.error for one in cluster.topics([*SCHEMAS]).values()), 60, "topics"
        )
        work = _process(
            stack,
            ["-m", "bench.pipeline_work", node.address, str(run.scratch / f"live-{rate}")]
            + [str(_COMMIT_AGE_S)],
            run.scratch / f"work-{rate}.log",
        )
        watched = _Watched(run, node.address, cluster, work, run.scratch / f"work-{rate}.log")
        stack.callback(watched.stop)
        yield watched


def _process(
    stack: contextlib.ExitStack, arguments: Sequence[str], log: Path
) -> "subprocess.Popen[str]":
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if "bench.pipeline_work" in arguments else errors,
            stderr=errors,
            text=True,
        )
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[str]") -> None:
    """A process that reads its input ends with it; the other one by the signal."""
    assert process.stdin is not None
    process.stdin.close()
    if process.stdout is None:
        process.terminate()
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Watched:
    """Threads that look at the topics, the batches, and alerts of attacks."""

    def __init__(
        self, run: Run, address: str, cluster: Cluster, work: "subprocess.Popen[str]", log: Path
    ) -> None:
        self._log = log
        self._run = run
        self._address = address
        self._cluster = cluster
        self._work = work
        self._over = threading.Event()
        self._ends: dict[TopicPartition, list[int]] = defaultdict(list)
        self._seen_at: list[float] = []
        self._read: dict[tuple[str, TopicPartition], int] = {}
        self._ages: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._guessed_at: dict[str, float] = {}
        self._alerts: list[float] = []
        self._began_at = 0.0
        self._cpu = 0.0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=one)
            for one in (self._look, self._hear, self._attack, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        _end(self._work)
        for thread in self._threads:
            thread.join()

    def toggle_load(self) -> None:
        """Stop the load, or start it again."""
        assert self._work.stdin is not None
        self._work.stdin.write("\n")
        self._work.stdin.flush()

    def begin(self) -> None:
        with self._lock:
            self._ages.clear()
            self._seconds.clear()
            self._alerts.clear()
            self._guessed_at.clear()
            self._began_at = time.monotonic()
            self._cpu = _machine_cpu()

    def go_on(self, seconds: float) -> None:
        """Wait; raises RuntimeError as soon as the jobs end."""
        try:
            self._work.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"the jobs ended: {self._log.read_text()[-3000:]}")

    def end(self) -> dict[str, float]:
        with self._lock:
            for who, ages in sorted(self._ages.items()):
                if not who.startswith("load/"):
                    took = sorted(self._seconds[who])
                    self._run.say(
                        f"pipeline-live {who}: {len(took)} batches, median "
                        f"{took[len(took) // 2]:.1f} s, longest {took[-1]:.1f} s, "
                        f"freshness p99 {_percentile(ages, 99):.1f} s"
                    )
            loaded = [one for who, ages in self._ages.items() if "load/" in who for one in ages]
            computed = [
                one
                for who, ages in self._ages.items()
                if "load/" not in who and "sessions" not in who
                for one in ages
            ]
            # An attack without an alert so far is as late as it is now.
            late = [time.time() - at for at in self._guessed_at.values()]
            alerts = [(one, 1) for one in (*self._alerts, *(one for one in late if one > 10))]
            return {
                _BACKLOG: self._backlog_s(),
                _LOADED: _percentile(loaded, 99),
                _COMPUTED: _percentile(computed, 99),
                "alert p50": _percentile(alerts, 50),
                _ALERTED: _percentile(alerts, 95),
                _CORES: (_machine_cpu() - self._cpu) / (time.monotonic() - self._began_at),
            }

    def _backlog_s(self) -> float:
        """The age of the oldest record that a query or the load has not read."""
        now = time.time()
        behind = [
            now - self._appended_at(place, read_end)
            for (_, place), read_end in self._read.items()
            if place in self._ends and read_end < self._ends[place][-1]  # not of retries
        ]
        return max(behind, default=0.0)

    # --- threads -----------------------------------------------------------------------------

    def _look(self) -> None:
        """Where the topics end, over time: tells when each offset was appended."""
        while not self._over.wait(_LOOK_EVERY_S):
            topics = self._cluster.topics([*SCHEMAS])
            places = [TopicPartition(t, number) for t in SCHEMAS for number in topics[t].leaders]
            found = self._cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
            with self._lock:
                self._seen_at.append(time.time())
                for place, end in found.items():
                    self._ends[place].append(end)

    def _hear(self) -> None:
        """What the process tells of its batches."""
        assert self._work.stdout is not None
        for line in self._work.stdout:
            told: dict[str, Any] = json.loads(line)
            with self._lock:
                self._seconds[told["who"]].append(told["seconds"])
                for topic, parts in told["read"].items():
                    for number, read_end in parts.items():
                        self._add(told, TopicPartition(topic, int(number)), read_end)

    def _add(self, told: dict[str, Any], place: TopicPartition, read_end: int) -> None:
        """The ages of the records of a batch: of parts, each with its number of records."""
        since = self._read.get((told["who"], place), 0)
        self._read[told["who"], place] = read_end
        step = max(1, (read_end - since) // 20)
        for first in range(since, read_end, step):
            age = told["at"] - self._appended_at(place, first)
            self._ages[told["who"]].append((age, min(step, read_end - first)))

    def _appended_at(self, place: TopicPartition, offset: int) -> float:
        """When the topic was first seen to be longer than the offset."""
        found = bisect.bisect_right(self._ends[place], offset)
        return self._seen_at[min(found, len(self._seen_at) - 1)]

    def _attack(self) -> None:
        """Guess a password so often that it is an incident, from a new client each time."""
        producer = Producer({"bootstrap.servers": self._address, "linger.ms": 0})
        while not self._over.wait(_ATTACK_EVERY_S):
            client = f"attack-{uuid.uuid4().hex[:12]}"
            for _ in range(_GUESSES):
                event = {
                    "event_id": uuid.uuid4().hex,
                    "at": datetime.now(UTC).isoformat(),
                    "client": client,
                    "account": "ann",
                    "succeeded": False,
                }
                producer.produce("logins", json.dumps(event), client)
            producer.flush(30)
            with self._lock:
                self._guessed_at[client] = time.time()

    def _consume(self) -> None:
        settings = {"group.id": "bench", "auto.offset.reset": "earliest", "log_level": 2}
        consumer = Consumer({"bootstrap.servers": self._address, **settings})
        consumer.subscribe(["alerts"])
        while not self._over.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            client = json.loads(message.value() or b"{}").get("client")
            with self._lock:
                guessed_at = self._guessed_at.pop(client, None)
                if guessed_at is not None:
                    self._alerts.append(time.time() - guessed_at)
        consumer.close()


def _percentile(values: Sequence[tuple[float, int]], percent: float) -> float:
    """Of values with weights; not a number without any."""
    ordered = sorted(values)
    wanted = sum(weight for _, weight in ordered) * percent / 100
    for value, weight in ordered:
        wanted -= weight
        if wanted <= 0:
            return value
    return float("nan")


def _machine_cpu() -> float:
    """Seconds that all cores were busy, with any program."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields)) - idle) / os.sysconf("SC_CLK_TCK")
