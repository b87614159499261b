"""What machines do: API clients, requests to services and their outages, metrics of hosts."""

from typing import NamedTuple

import numpy as np

from headrace.pipeline.generate import site as s
from headrace.pipeline.generate.columns import Events, Floats, Numbers, Words, quoted
from headrace.pipeline.generate.drawing import Burst, Drawing
from headrace.pipeline.generate.site import chosen, long_tail

OVER_LIMIT = Burst(0.30, 20.0, 6000)
OUTAGE = Burst(0.08, 2.0, 1200)  # clients of a failing service try again and again


class Outage(NamedTuple):
    service: str
    since_ms: int
    until_ms: int


class Machines(Drawing):
    def all(self, counts: dict[str, int]) -> tuple[dict[str, Events], list[Outage]]:
        requests, outages = self._requests(counts["requests"])
        events = {
            "api-calls": self._api_calls(counts["api-calls"]),
            "metrics": self._metrics(counts["metrics"], outages),
            "requests": requests,
        }
        return events, outages

    def _api_calls(self, count: int) -> Events:
        rng = self.rng
        over = int(count * OVER_LIMIT.share)
        burst, over_time, _, _ = self.bursts(OVER_LIMIT, over)
        usual = chosen(rng, long_tail(np.random.default_rng(1), s.API_CLIENTS), count - over)
        greedy = self.site.bots.api_clients
        status = np.searchsorted([0.96, 0.99], rng.random(count))
        status[count - over :][rng.random(over) < 0.5] = 3
        return self.events(
            np.concatenate((self.times(count - over), over_time)),
            client=Words(
                np.concatenate((usual, greedy[burst % len(greedy)])),
                quoted([f"key-{number}" for number in range(s.API_CLIENTS)]),
            ),
            endpoint=Words(
                rng.integers(0, len(s.ENDPOINTS), count, dtype=np.int32), quoted(s.ENDPOINTS)
            ),
            status=Numbers(np.array([200, 404, 500, 429])[status]),
            bytes=Numbers(rng.lognormal(7, 1.2, count).astype(np.int64)),
        )

    def _requests(self, count: int) -> tuple[Events, list[Outage]]:
        """Requests to failing services are slow, and many are answered with an error."""
        rng = self.rng
        repeated = int(count * OUTAGE.share)
        burst, burst_time, start, length = self.bursts(OUTAGE, repeated)
        failing = rng.integers(0, len(s.SERVICES), len(start), dtype=np.int32)
        time = np.concatenate((self.times(count - repeated), burst_time))
        usual = chosen(rng, np.array([0.4, 0.1, 0.15, 0.15, 0.05, 0.15]), count - repeated)
        service = np.concatenate((usual, failing[burst]))
        fails = np.zeros(count, bool)
        for which, since, lasts in zip(failing, start, length, strict=True):
            fails |= (service == which) & (time >= since) & (time < since + lasts)
        duration = rng.lognormal(2.5 + 0.3 * (service % 3), 0.6, count)
        duration[fails] = duration[fails] * 15 + 800
        status = np.searchsorted([0.975, 0.99, 0.994, 0.997], rng.random(count))
        status[fails & (rng.random(count) < 0.5)] = 4
        paths = [path for group in s.SERVICES.values() for path in group]
        first_path = np.cumsum([0, *(len(group) for group in s.SERVICES.values())])[:-1]
        path_count = np.array([len(group) for group in s.SERVICES.values()])
        path = first_path[service] + rng.integers(0, 1 << 30, count) % path_count[service]
        host = service * s.HOSTS_PER_SERVICE + rng.integers(0, s.HOSTS_PER_SERVICE, count)
        outages = [
            Outage(tuple(s.SERVICES)[which], self.span.start_ms + since, self.span.start_ms + end)
            for which, since, end in zip(
                failing.tolist(), start.tolist(), (start + length).tolist(), strict=True
            )
        ]
        events = self.events(
            time,
            host=Words(host.astype(np.int32), quoted(s.HOSTS)),
            service=Words(service.astype(np.int32), quoted(tuple(s.SERVICES))),
            method=Words(
                np.searchsorted([0.8, 0.97], rng.random(count)).astype(np.int32),
                quoted(["GET", "POST", "DELETE"]),
            ),
            path=Words(path.astype(np.int32), quoted(paths)),
            status=Numbers(np.array([200, 304, 404, 400, 503])[status]),
            duration_ms=Numbers(np.round(duration, 1)),
        )
        return events, sorted(outages, key=lambda outage: outage.since_ms)

    def _metrics(self, count: int, outages: list[Outage]) -> Events:
        """Every host in turn, at a fixed interval."""
        rng, span = self.rng, self.span
        host = np.arange(count, dtype=np.int32) % len(s.HOSTS)
        service = (host // s.HOSTS_PER_SERVICE).astype(np.int32)
        time = np.arange(count, dtype=np.int64) * span.length_ms // max(count, 1)
        load: Floats = np.full(count, 5.0)
        if span.has_rhythm:
            load = np.array(s.HOURS)[time // 3_600_000]
        cpu = 5 + 7 * load + rng.normal(0, 4, count)
        for outage in outages:
            hit = service == tuple(s.SERVICES).index(outage.service)
            at = span.start_ms + time
            hit &= (at >= outage.since_ms) & (at < outage.until_ms)
            cpu[hit] = 96 + rng.normal(0, 1, int(hit.sum()))
        return self.events(
            time,
            host=Words(host, quoted(s.HOSTS)),
            service=Words(service, quoted(tuple(s.SERVICES))),
            cpu=Numbers(np.round(np.clip(cpu, 0, 100), 1)),
            io_read=Numbers((rng.lognormal(12, 1, count) * load).astype(np.int64)),
            io_write=Numbers((rng.lognormal(11, 1, count) * load).astype(np.int64)),
        )
