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

from headrace.pipeline.events import EVENT_ID, EVENT_TIME, SCHEMAS
from headrace.pipeline.jobs.stand_in import source, step, table, topic

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
        F.count_if("status >= 500").alias("errors"),
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
    rules = ", ".join(f"('{kind}', {high}D, {low}D)" for kind, (high, low) in RULES.items())
    kept = MINUTES_TO_RAISE - 1
    return f"""
        with clock as (
            select max(newest) - interval {LATENESS} as closed_before,
                greatest(max(newest), (select max(minute) from bad_requests)) as newest
            from service_alerts
        ),
        recent as (
            select service, kind, minute, sum(requests) as requests, sum(bad) as bad
            from (
                select service, kind, minute, requests, bad from bad_requests cross join clock
                where closed_before is null or minute >= closed_before
                union all
                select service, kind, inline_outer(minutes) from service_alerts
            )
            group by all
        ),
        closed as (
            select service, kind, minute, bad / requests as value, case
                when requests < {REQUESTS_TO_JUDGE} then null
                when bad >= high * requests then 'bad'
                when bad < low * requests then 'good' end as level
            from recent join (select * from values {rules} as rules(kind, high, low)) using (kind)
                cross join clock
            where minute < newest - interval {LATENESS}
        ),
        signals as (
            select service, kind, minute, value, case
                when {MINUTES_TO_RAISE} = count_if(level = 'bad') over (
                    partition by service, kind order by minute
                    range between interval {kept} minutes preceding and current row) then 'raised'
                when level = 'good' then 'ok' end as signal
            from closed
        ),
        states as (
            select *, coalesce(last_value(signal) ignore nulls over (
                partition by service, kind order by minute), 'ok') as state
            from (
                select service, kind, minute, value, signal, true as fresh
                from signals cross join clock
                where closed_before is null or minute >= closed_before
                union all
                select service, kind, since, value, state, false from service_alerts
                where since is not null
            )
        ),
        changes as (
            select service, kind, max(struct(minute, state, value)) as last,
                array_sort(collect_list(struct(minute as since, state, value)) filter (where fresh))
                    as changes
            from (
                select *, lag(state, 1, 'ok') over (
                    partition by service, kind order by minute) as before
                from states
            )
            where state <> before or not fresh
            group by service, kind
        )
        select service, kind, coalesce(any_value(last.state), 'ok') as state,
            any_value(last.minute) as since, any_value(last.value) as value,
            any_value(newest) as newest,
            array_sort(collect_list(struct(minute, requests, bad)) filter (
                where minute >= newest - interval {LATENESS} - interval {kept} minutes)) as minutes,
            any_value(changes) as changes
        from recent left join changes using (service, kind) cross join clock
        group by service, kind
    """


@table(key=["service", "kind"], schema=ALERTS, trigger="5 seconds")
def service_alerts(judged: DataFrame) -> DataFrame:
    return judged.drop("changes")


@topic("operations-alerts", key="service", trigger="5 seconds")
def operations_alerts(judged: DataFrame) -> str:
    return "select service, kind, inline(changes) from judged"
