"""Operations of a website: load of hosts, requests of services, and alerts.

Counts and sums are exact. Request times are KLL sketches: the rank of a percentile is within 1.7 %
of the true rank in 99 of 100 cases.

A service raises an alert of a kind when its share of bad requests is high in three minutes in a
row, and clears it in the first minute in which the share is low. Alerts cannot wait for late
requests, nor depend on the batches that bring them. So they count only requests that arrive within
a minute, and judge a minute when the newest request arrived a minute after its end.
"""

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.pipeline import example, source, step, table, topic
from headrace.pipeline.events import EVENT_ID, EVENT_TIME, SCHEMAS

EVENTS: Final = {
    "event_time": EVENT_TIME,
    "event_id": EVENT_ID,
    "lateness": "10 minutes",
    "late": "recompute",
}
WAIT: Final = "interval 1 minute"
SLOW_MS: Final = 1000
# Shares of bad requests that raise and clear an alert, by kind.
RULES: Final = {"errors": (0.1, 0.05), "slow": (0.25, 0.1)}
MINUTES_TO_RAISE: Final = 3
REQUESTS_TO_JUDGE: Final = 5  # a minute with fewer neither raises nor clears
# ``clock`` is the minute of the newest arrival at any service. ``minutes`` are not judged yet, or
# the next ones are judged with them.
ALERTS: Final = """
    service string, kind string, state string, since timestamp, value double, clock timestamp,
    minutes array<struct<minute: timestamp, requests: long, bad: long>>
"""


@source("metrics", schema=SCHEMAS["metrics"], **EVENTS)
def metrics(records: DataFrame) -> DataFrame:
    return records


@source("requests", schema=SCHEMAS["requests"] + ", _arrived timestamp", **EVENTS)
def requests(records: DataFrame) -> DataFrame:
    return records


@table(
    key=["host", "minute"],
    merge={
        "cpu_sum": "sum",
        "cpu_max": "max",
        "io_read": "sum",
        "io_write": "sum",
        "samples": "sum",
    },
    trigger="5 seconds",
)
def host_minutes(metrics: DataFrame) -> DataFrame:
    # A sum of doubles would depend on their order.
    cpu = F.col("cpu").cast("decimal(28, 6)")
    return metrics.groupBy("host", F.date_trunc("minute", "at").alias("minute")).agg(
        F.sum(cpu).alias("cpu_sum"),
        F.max("cpu").alias("cpu_max"),
        F.sum("io_read").alias("io_read"),
        F.sum("io_write").alias("io_write"),
        F.count("*").alias("samples"),
    )


@table(
    key=["service", "host", "minute"],
    merge={"requests": "sum", "errors": "sum", "slow": "sum", "duration": "kll"},
    trigger="5 seconds",
)
def service_minutes(requests: DataFrame) -> DataFrame:
    minute = F.date_trunc("minute", "at").alias("minute")
    return requests.groupBy("service", "host", minute).agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= 500).alias("errors"),
        F.count_if(F.col("duration_ms") >= SLOW_MS).alias("slow"),
        F.kll_sketch_agg_double("duration_ms").alias("duration"),
    )


@step
def bad_requests(requests: DataFrame) -> str:
    """Requests that arrived in time, and bad ones, by service, kind of alert and minute."""
    # The clock of a host may be ahead. It must not close the minutes of the others.
    return f"""
        with counts as (
            select service, date_trunc('minute', least(at, _arrived)) as minute,
                date_trunc('minute', max(_arrived)) as clock, count(*) as requests,
                count_if(status >= 500) as errors, count_if(duration_ms >= {SLOW_MS}) as slow
            from requests
            where at >= _arrived - {WAIT}
            group by 1, 2
        )
        select service, kind, minute, clock, requests, bad
        from counts lateral view stack(2, 'errors', errors, 'slow', slow) as kind, bad
    """


@step
def judged(bad_requests: DataFrame, service_alerts: DataFrame) -> str:
    """The alerts of each service after this batch, and the changes that led there."""
    high = ", ".join(f"'{kind}', {share}D" for kind, (share, _) in RULES.items())
    low = ", ".join(f"'{kind}', {share}D" for kind, (_, share) in RULES.items())
    before = f"interval {MINUTES_TO_RAISE - 1} minutes"
    return f"""
        with counted as (
            select service, kind, minute, requests, bad, clock, null as clock_before, null as last
            from bad_requests
            union all
            select service, kind, minute, requests, bad, clock, clock, struct(since, state, value)
            from service_alerts lateral view outer inline(minutes) as minute, requests, bad
        ),
        timed as (
            select service, kind, minute, requests, bad, last, max(clock) over () as clock,
                coalesce(minute < max(clock_before) over () - {WAIT}, false) as is_judged
            from counted
        ),
        levels as (
            select service, kind, minute, is_judged, clock, max(last) as last,
                sum(requests) as requests, sum(bad) as bad, sum(bad) / sum(requests) as value, case
                    when sum(requests) < {REQUESTS_TO_JUDGE} then null
                    when value >= map({high})[kind] then 'bad'
                    when value < map({low})[kind] then 'good' end as level
            from timed
            where last is not null or not is_judged
            group by service, kind, minute, is_judged, clock
        ),
        signals as (
            select *, max(last.state) over (partition by service, kind) as state_before, case
                when is_judged or minute >= clock - {WAIT} then null
                when {MINUTES_TO_RAISE} = count_if(level = 'bad') over (
                    partition by service, kind order by minute
                    range between {before} preceding and current row) then 'raised'
                when level = 'good' then 'ok' end as signal
            from levels
        ),
        states as (
            select *, coalesce(last_value(signal) ignore nulls over (
                partition by service, kind order by minute), state_before, 'ok') as state
            from signals
        ),
        changes as (
            select *, state <> lag(state, 1, coalesce(state_before, 'ok')) over (
                partition by service, kind order by minute) as has_changed
            from states
        )
        select service, kind, ifnull(
                max(struct(minute as since, state, value)) filter (where has_changed), max(last)
            ) as last, clock,
            array_sort(collect_list(struct(minute, requests, bad)) filter (
                where minute >= clock - {WAIT} - {before})) as minutes,
            array_sort(collect_list(struct(minute as since, state, value)) filter (
                where has_changed)) as changes
        from changes
        group by service, kind, clock
    """


@table(key=["service", "kind"], schema=ALERTS, trigger="5 seconds")
def service_alerts(judged: DataFrame) -> str:
    return """
        select service, kind, ifnull(last.state, 'ok') as state, last.since, last.value, clock,
            minutes
        from judged
    """


@topic("operations-alerts", key="service", trigger="5 seconds")
def operations_alerts(judged: DataFrame) -> str:
    return "select service, kind, inline(changes) from judged"


@example
def three_bad_minutes_raise_an_alert() -> tuple[Any, dict[str, Any]]:
    requests = [
        {
            "event_id": f"{minute}-{second}",
            "at": f"2026-03-01T12:0{minute}:0{second}Z",
            "host": "h1",
            "service": "shop",
            "status": 503,
            "duration_ms": 12.0,
        }
        for minute in (0, 1, 2, 4)
        for second in range(REQUESTS_TO_JUDGE)
    ]
    raised = {"service": "shop", "kind": "errors", "state": "raised"}
    return (
        {"requests": requests},
        {"operations_alerts": [{**raised, "since": "2026-03-01T12:02:00Z", "value": 1.0}]},
    )
