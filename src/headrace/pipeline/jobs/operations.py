"""Operations of a website: load of hosts, requests of services, and alerts.

Counts and sums are exact. Request times are KLL sketches: the rank of a percentile is within 1.7 %
of the true rank in 99 of 100 cases.

A service raises an alert of a kind when its share of bad requests is high in three minutes in a
row, and clears it in the first minute in which the share is low. Only closed minutes count: the
service of the newest request and the others are complete up to that request less the lateness. So
alerts depend on the events alone, not on the batches that bring them.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.pipeline import source, step, table, topic
from headrace.pipeline.events import EVENT_ID, EVENT_TIME, SCHEMAS

LATENESS: Final = "1 minute"
EVENTS: Final = {
    "event_time": EVENT_TIME,
    "event_id": EVENT_ID,
    "lateness": LATENESS,
    "late": "recompute",
}
SLOW_MS: Final = 1000
# Shares of bad requests that raise and clear an alert, by kind.
RULES: Final = {"errors": (0.1, 0.05), "slow": (0.25, 0.1)}
MINUTES_TO_RAISE: Final = 3
REQUESTS_TO_JUDGE: Final = 5  # a minute with fewer neither raises nor clears
# The newest minute of any service, and those of this service that later minutes are judged with.
ALERTS: Final = """
    service string, kind string, state string, since timestamp, value double,
    newest timestamp, minutes array<struct<minute: timestamp, requests: long, bad: long>>
"""


@source("metrics", schema=SCHEMAS["metrics"], **EVENTS)
def metrics(records: DataFrame) -> DataFrame:
    return records


@source("requests", schema=SCHEMAS["requests"], **EVENTS)
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
    """Requests and bad requests by service, kind of alert and minute."""
    return f"""
        with counts as (
            select service, date_trunc('minute', at) as minute, count(*) as requests,
                count_if(status >= 500) as errors, count_if(duration_ms >= {SLOW_MS}) as slow
            from requests
            group by all
        )
        select service, kind, minute, requests, bad
        from counts lateral view stack(2, 'errors', errors, 'slow', slow) as kind, bad
    """


@step
def judged(bad_requests: DataFrame, service_alerts: DataFrame) -> str:
    """The alerts of each service after this batch, and the changes that led there."""
    high = ", ".join(f"'{kind}', {share}D" for kind, (share, _) in RULES.items())
    low = ", ".join(f"'{kind}', {share}D" for kind, (_, share) in RULES.items())
    kept = MINUTES_TO_RAISE - 1
    return f"""
        with counted as (
            select service, kind, minute, requests, bad, null as newest, null as last
            from bad_requests
            union all
            select service, kind, minute, requests, bad, newest, struct(since, state, value)
            from service_alerts lateral view outer inline(minutes) as minute, requests, bad
        ),
        timed as (
            select service, kind, minute, requests, bad, last,
                max(newest) over () - interval {LATENESS} as closed_until,
                greatest(max(newest) over (), max(minute) over ()) as newest
            from counted
        ),
        recent as (
            select service, kind, minute, newest, sum(requests) as requests, sum(bad) as bad,
                sum(bad) / sum(requests) as value, max(last) as last,
                minute < newest - interval {LATENESS} as is_closed,
                coalesce(minute < closed_until, false) as was_closed
            from timed
            where last is not null or closed_until is null or minute >= closed_until
            group by service, kind, minute, newest, closed_until
        ),
        levels as (
            select *, case
                when requests < {REQUESTS_TO_JUDGE} then null
                when value >= map({high})[kind] then 'bad'
                when value < map({low})[kind] then 'good' end as level
            from recent
        ),
        signals as (
            select *, max(last.state) over (partition by service, kind) as state_before, case
                when was_closed or not is_closed then null
                when {MINUTES_TO_RAISE} = count_if(level = 'bad') over (
                    partition by service, kind order by minute
                    range between interval {kept} minutes preceding and current row) then 'raised'
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
            ) as last, newest,
            array_sort(collect_list(struct(minute, requests, bad)) filter (
                where minute >= newest - interval {LATENESS} - interval {kept} minutes)) as minutes,
            array_sort(collect_list(struct(minute as since, state, value)) filter (
                where has_changed)) as changes
        from changes
        group by service, kind, newest
    """


@table(key=["service", "kind"], schema=ALERTS, trigger="5 seconds")
def service_alerts(judged: DataFrame) -> str:
    return """
        select service, kind, ifnull(last.state, 'ok') as state, last.since, last.value,
            newest, minutes
        from judged
    """


@topic("operations-alerts", key="service", trigger="5 seconds")
def operations_alerts(judged: DataFrame) -> str:
    return "select service, kind, inline(changes) from judged"
