"""What machines do: API clients, services that fail for a while, and metrics."""

import numpy as np
import pytest

from headrace.pipeline.generate.drawing import Span
from headrace.pipeline.generate.machines import Machines
from headrace.pipeline.generate.site import HOSTS, make_site
from headrace.pipeline.generate.traffic import counts_of

SITE = make_site(1, 500)
SPAN = Span(1_000_000_000_000, 86_400_000, has_rhythm=True)


@pytest.fixture(scope="module")
def drawn():
    return Machines(SITE, SPAN, np.random.default_rng(1)).all(counts_of(200_000))


def texts(events, name):
    return np.array(events.columns[name].json().to_pylist())


def test_a_failing_service_is_slow_and_answers_with_errors(drawn):
    events, outages = drawn
    requests = events["requests"]
    assert outages and outages == sorted(outages, key=lambda outage: outage.since_ms)
    service, status = texts(requests, "service"), requests.columns["status"].values
    duration = requests.columns["duration_ms"].values
    failed = np.zeros(len(service), bool)
    for outage in outages:
        failed |= (
            (service == f'"{outage.service}"')
            & (requests.sent_ms >= outage.since_ms)
            & (requests.sent_ms < outage.until_ms)
        )
    assert failed.sum() > 1000
    assert (status[failed] == 503).mean() > 0.4 and (status[~failed] >= 500).mean() < 0.01
    assert np.median(duration[failed]) > 20 * np.median(duration[~failed])


def test_metrics_come_from_every_host_at_an_interval(drawn):
    events, outages = drawn
    metrics = events["metrics"]
    hosts = texts(metrics, "host")
    assert {host.strip('"') for host in hosts.tolist()} == set(HOSTS)
    gaps = np.diff(metrics.sent_ms[hosts == f'"{HOSTS[0]}"'])
    assert gaps.max() - gaps.min() < 10
    cpu = metrics.columns["cpu"].values
    assert cpu.min() >= 0 and cpu.max() <= 100
    outage = outages[0]
    during = (metrics.sent_ms >= outage.since_ms) & (metrics.sent_ms < outage.until_ms)
    assert cpu[during & (texts(metrics, "service") == f'"{outage.service}"')].mean() > 90


def test_some_api_clients_exceed_their_limit(drawn):
    calls = drawn[0]["api-calls"]
    client, status = calls.columns["client"].codes, calls.columns["status"].values
    for number in SITE.bots.api_clients[:1]:
        seconds = (calls.sent_ms[client == number] - SPAN.start_ms) // 1000
        assert np.bincount(seconds).max() >= 15
        assert (status[client == number] == 429).mean() > 0.3
    assert (status[client == 0] == 429).sum() == 0
