"""The daily report of a website: traffic, sessions, rankings, security, services, and the audit.

A report file like any other: see docs/reports.md.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pyarrow as pa

from headrace.report import (
    Block,
    Day,
    Figure,
    Figures,
    Plot,
    Table,
    bars,
    groups_by_hour,
    lines_by_hour,
    panel,
    percentiles,
)
from headrace.report.colors import SERIES
from headrace.report.numbers import counted, relative_change, signed_percent, text_of
from headrace.report.views import HLL_ERROR, LATENESS, instant, literal, view_name

TITLE = "Daily report"
# Busy topics: the one that is furthest behind decides how far the day is loaded.
CLOCK_TOPICS = ("page-views", "requests")
_GROUPS_MAX = len(SERIES)
# A ranking is compared as of this time after the day: jobs that run in the night count, too.
_AFTER_THE_DAY = timedelta(hours=2)


@panel("At a glance")
def at_a_glance(day: Day) -> Iterator[Block]:
    figures: list[Figure] = []
    if day.has("events_page_views"):
        found = day.row("""
            select count(*) filter (today) as views,
                count(*) filter (not today and by_now) as views_before,
                count(distinct visitor) filter (today) as visitors,
                count(distinct visitor) filter (not today and by_now) as visitors_before
            from events_page_views""")
        figures.append(Figure("Page views", found["views"], found["views_before"], good="up"))
        figures.append(Figure("Visitors", found["visitors"], found["visitors_before"], good="up"))
    if day.has("sessions"):
        found = day.row("""
            select count(*) filter (in_day(started)) as today,
                count(*) filter (in_day_before(started)) as before
            from sessions""")
        figures.append(Figure("Sessions", found["today"], found["before"], good="up"))
    if day.has("events_searches"):
        found = day.row("""
            select count(*) filter (today) as today,
                count(*) filter (not today and by_now) as before
            from events_searches""")
        figures.append(Figure("Searches", found["today"], found["before"], good="up"))
    if day.has("events_requests"):
        found = day.row(f"select {_health('today')}, {_health('not today and by_now', '_before')} "
                        "from events_requests")  # fmt: skip
        errors = found["error_share"], found["error_share_before"]
        slow = found["p95_ms"], found["p95_ms_before"]
        figures.append(Figure("Failed requests", *errors, unit="share", good="down"))
        figures.append(Figure("Response time, p95", *slow, unit="ms", good="down"))
    if not figures:
        yield "The warehouse has no events for this day."
        return
    yield Figures(figures)
    if not day.is_settled and day.newest_event is not None:
        yield (
            f"The day is not complete. The day before is counted until "
            f"{min(day.newest_event, day.end):%H:%M}, too."
        )


@panel("Traffic", needs=["events_page_views"])
def traffic(day: Day) -> Iterator[Block]:
    counts = (
        "count(*) filter ({0}) as views{1}, count(distinct visitor) filter ({0}) as visitors{1}"
    )
    rows = _by_hour(
        day,
        f"""select hour, {counts.format("today", "")}, {counts.format("not today", "_before")}
            from events_page_views group by hour""",
        ("views", "visitors", "views_before", "visitors_before"),
    )
    for column, title in (("views", "Page views by hour"), ("visitors", "Visitors by hour")):
        yield _against_day_before(day, rows, column, title)
    yield (
        "Visitors on this page are exact: each is counted once, from the raw events. The tables of "
        f"the activity job hold estimates, with a standard error of {text_of(HLL_ERROR, 'share')}."
    )


@panel("Pages", needs=["events_page_views"])
def pages(day: Day) -> Iterator[Block]:
    rows = day.sql("""
        select coalesce(page, '(none)') as page, count(*) filter (today) as views,
            count(distinct visitor) filter (today) as visitors,
            count(*) filter (not today and by_now) as views_before
        from events_page_views group by all having views > 0
        order by views desc, page limit 10""")
    yield Plot(
        "Top pages",
        rows,
        _leader(rows, "page", "views", "view"),
        bars("page", "views", "visitors", "views_before"),
    )
    if not day.has("events_searches"):
        yield day.missing("events_searches")
        return
    rows = day.sql("""
        select coalesce(query, '(none)') as search, count(*) as searches,
            count(*) filter (results = 0) / count(*) as without_results_share
        from events_searches where today group by all
        order by searches desc, search limit 10""")
    empty = day.row("""
        select count(*) filter (results = 0) / count(*) as empty_share
        from events_searches where today""")["empty_share"]
    yield Plot(
        "Top searches",
        rows,
        f"{_leader(rows, 'search', 'searches', 'search', 'searches')} "
        f"{text_of(empty, 'share')} of all searches found nothing.",
        bars("search", "searches", "without_results_share"),
    )


@panel("Sessions", needs=["sessions"])
def sessions(day: Day) -> Iterator[Block]:
    measured = """count(*) filter ({0}) as sessions{1}, median(seconds) filter ({0}) as seconds{1},
        avg(views) filter ({0}) as views{1},
        count(*) filter ({0} and views = 1) / nullif(count(*) filter ({0}), 0) as single{1}"""
    found = day.row(f"""
        select {measured.format("in_day(started)", "")},
            {measured.format("in_day_before(started)", "_before")}
        from sessions""")
    if not found["sessions"]:
        yield "No session started on this day."
        return
    yield Figures(
        [
            Figure("Sessions", found["sessions"], found["sessions_before"], good="up"),
            Figure("Median length", found["seconds"], found["seconds_before"], "seconds"),
            Figure("Pages per session", found["views"], found["views_before"]),
            Figure(
                "Single-page sessions", found["single"], found["single_before"], "share", "down"
            ),
        ]
    )
    rows = day.sql("""
        with lengths(slot, length, first, past) as (values
            (0, 'one page', -1, 0), (1, 'under 30 s', 0, 30), (2, '30 s to 1 min', 30, 60),
            (3, '1 to 3 min', 60, 180), (4, '3 to 10 min', 180, 600),
            (5, '10 to 30 min', 600, 1800), (6, 'over 30 min', 1800, 1e9))
        select length, count(session_id) as sessions
        from lengths left join (
            select session_id, case when views = 1 then -0.5 else seconds end as seconds
            from sessions where in_day(started)
        ) on seconds >= first and seconds < past
        group by slot, length order by slot""")
    longest = max(rows.to_pylist(), key=lambda row: row["sessions"])
    yield Plot(
        "Length of sessions",
        rows,
        f"Most sessions, {longest['sessions']:,}, are in the group “{longest['length']}”.",
        bars("length", "sessions"),
    )
    yield Table(
        "Where sessions begin and end",
        day.sql("""
            with ends as (
                select entry as page, 1 as entries, 0 as exits from sessions where in_day(started)
                union all
                select exit, 0, 1 from sessions where in_day(started))
            select page, sum(entries) as entries, sum(exits) as exits
            from ends group by page order by count(*) desc, page limit 8"""),
    )


@panel("Ranking movers", needs=["appended_rankings"])
def ranking_movers(day: Day) -> Iterator[Block]:
    times = day.row(f"""
        select max(as_of) filter (as_of < {instant(day.end + _AFTER_THE_DAY)}) as now,
            max(as_of) filter (as_of < {instant(day.start + _AFTER_THE_DAY)}) as before,
            min(as_of) as first, max(as_of) as last
        from appended_rankings""")
    now, before = times["now"] or times["last"], times["before"] or times["first"]
    if now is None:
        yield "No ranking has a time."
        return
    rows = day.sql(f"""
        with now as ({_ranking_at(now)}), before as ({_ranking_at(before)}),
        moved as (
            select now.category, now.item, now.rank, before.rank as rank_before,
                coalesce(before.rank, (select max(rank) + 1 from before)) - now.rank as places
            from now left join before using (category, item))
        select category, item::varchar as item, rank, rank_before,
            case when rank_before is null then 'new'
            when places > 0 then '▲ ' || places else '▼ ' || -places end as moved
        from moved where places <> 0 or rank_before is null
        order by abs(places) desc, category, rank limit 12""")
    if now == before:
        yield "There is one ranking so far, and none to compare it with."
    elif rows.num_rows:
        yield Table("Largest moves", rows, f"Between {text_of(before)} and {text_of(now)}.")
    else:
        yield f"No item moved between {text_of(before)} and {text_of(now)}."
    yield Table(
        "Top of each category",
        day.sql(f"""
            select category, rank, item::varchar as item, rating as rating_share,
                round(votes)::bigint as votes
            from ({_ranking_at(now)}) where rank <= 3 order by category, rank limit 12"""),
        "Rating is the least share of likes that the votes support; older votes count less.",
    )


@panel("Security", needs=["incidents"])
def security(day: Day) -> Iterator[Block]:
    of_day = f"""since < {instant(day.end)} and coalesce("until", since) >= {instant(day.start)}"""
    found = day.row(f"""
        select count(*) as incidents, count(distinct client) as clients
        from incidents where {of_day}""")
    if not found["incidents"]:
        yield "No incident on this day."
        return
    figures = [Figure("Incidents", found["incidents"]), Figure("Clients", found["clients"])]
    if day.has("blocked"):
        blocked = day.row(f"select count(*) as clients from blocked where {of_day}")["clients"]
        figures.append(Figure("Blocked clients", blocked))
    yield Figures(figures)
    frequent = f"""select kind, count(*) as incidents from incidents where {of_day}
        group by kind order by incidents desc, kind limit {_GROUPS_MAX}"""
    rows = day.sql(f"""
        select hour(greatest(since, {instant(day.start)}))::int as hour, kind,
            count(*) as incidents
        from incidents where {of_day} and kind in (select kind from ({frequent}))
        group by all order by hour, kind""")
    kinds = {row["kind"]: row["incidents"] for row in day.sql(frequent).to_pylist()}
    each = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
    yield Plot(
        "Incidents by hour",
        rows,
        f"{counted(found['incidents'], 'incident')}: {each}.",
        groups_by_hour(
            "incidents", "kind", list(kinds), stacked=True, provisional=day.provisional_hours
        ),
    )
    worst = day.sql(f"""
        select kind, client, since, evidence from incidents where {of_day}
        order by score desc, since, incident_id limit 10""")
    evidence = pa.array([_in_words(value) for value in worst.column("evidence").to_pylist()])
    yield Table("Incidents of highest score", worst.set_column(3, "evidence", evidence))


@panel("Service health", needs=["events_requests"])
def service_health(day: Day) -> Iterator[Block]:
    rows = day.sql(f"""
        select service, count(*) filter (today) as requests, {_health("today")}
        from events_requests where service is not null and duration_ms is not null
        group by service having requests > 0 order by requests desc, service limit 12""")
    if not rows.num_rows:
        yield "No request names its service and its duration."
        return
    slowest = max(rows.to_pylist(), key=lambda row: row["p95_ms"])
    yield Plot(
        "Response times by service",
        rows.select(["service", "p50_ms", "p95_ms", "p99_ms"]),
        f"The slowest service is {slowest['service']}: 95 % of its requests took at most "
        f"{text_of(slowest['p95_ms'], 'ms')}. Dots are p50, p95 and p99, on a logarithmic scale.",
        percentiles("service"),
    )
    yield _errors_by_hour(day)
    yield Table("Services", rows)
    if day.has("service_alerts"):
        alerts = day.sql(f"""
            select service, kind as alert, state, since, value as bad_requests_share
            from service_alerts
            where since < {instant(day.end)} and (in_day(since) or state <> 'ok')
            order by since, service, kind limit 12""")
        if alerts.num_rows:
            yield Table("Alerts", alerts)


@panel("Audit")
def audit(day: Day) -> Iterator[Block]:
    if not day.topics:
        yield "The warehouse has no events to audit."
        return
    rows = day.sql(
        " union all ".join(
            f"""select {literal(topic)} as topic, count(*) as records,
                count(distinct event_id) as events,
                count(*) - count(distinct event_id) as sent_again,
                count(_offset) - count(distinct (_topic_id, _partition, _offset))
                    filter (_offset is not null) as loaded_twice
            from {view_name("raw_", topic)} where in_day("at")"""
            for topic in day.topics
        )
        + " order by topic"
    )
    twice = sum(rows.column("loaded_twice").to_pylist())
    yield (
        "Every record was loaded once."
        if twice == 0
        else f"The books do not balance: {counted(twice, 'record')} loaded more than once."
    )
    yield Table(
        "Records in the warehouse",
        rows,
        "A record that a producer sent again has the same event ID, and is counted once.",
    )
    if day.has("page_minutes") and day.has("events_page_views"):
        found = day.row("""
            select (select coalesce(sum(views), 0) from page_minutes where in_day(minute)) as job,
                (select count(*) from events_page_views where today) as events""")
        job, events = int(found["job"]), found["events"]
        difference = "as the table" if job == events else f"and the table {events:,}"
        yield f"The activity job counted {job:,} page views, {difference}."
    if day.has("appended_audit"):
        yield from _tiers(day)
    else:
        yield "No audit of producers, brokers and jobs was kept; headrace pipeline audit makes one."


@panel("Expectations")
def expectations(day: Day) -> Iterator[Block]:
    if not day.has("expectations"):
        yield "No pipeline of this warehouse has counted rows against rules."
        return
    rows = day.sql("""
        with counted as (
            select *, row_number() over (partition by pipeline, "function", rule
                order by _written_at desc, _batch desc, _query desc) as age
            from appended_expectations)
        select pipeline, "function", rule, sum("rows") as "rows", sum(failed) as failed,
            sum(failed) / nullif(sum("rows"), 0) as failed_share,
            max("rows") filter (age = 1) as last_batch_rows,
            max(failed) filter (age = 1) as last_batch_failed,
            max(_written_at) as last_batch
        from counted group by pipeline, "function", rule
        order by failed desc, pipeline, "function", rule limit 20""")
    worst = rows.slice(0, 1).to_pylist()[0]
    told = "No row broke a rule."
    if worst["failed"]:
        told = (
            f"{counted(worst['failed'], 'row')} of {worst['function']} broke the rule "
            f"{worst['rule']}, {text_of(worst['failed_share'], 'share')} of all."
        )
    yield Table("Rows against rules", rows, f"{told} All batches count, not only those of the day.")


@panel("Late events and dead letters")
def late_and_dead(day: Day) -> Iterator[Block]:
    if not day.topics:
        yield "The warehouse has no events for this day."
        return
    late = f"interval {int(LATENESS.total_seconds())} second"
    each = " union all ".join(
        f"""select {literal(topic)} as topic, hour, today, "at" + {late} < max(
                least("at", _timestamp + {late})) over (partition by _topic_id, _partition
                order by _offset rows between unbounded preceding and 1 preceding) as is_late
            from {view_name("events_", topic)} where _offset is not null"""
        for topic in day.topics
    )
    by_topic = day.sql(f"""
        select topic, count(*) as events, count(*) filter (is_late) as late,
            count(*) filter (is_late) / count(*) as late_share
        from ({each}) where today group by topic order by topic""")
    by_hour = _by_hour(
        day,
        f"select hour, count(*) filter (today and is_late) as late from ({each}) group by hour",
        ("late",),
    )
    total = sum(by_topic.column("late").to_pylist())
    allowed = text_of(LATENESS.total_seconds(), "seconds")
    yield Plot(
        "Late events by hour",
        by_hour,
        f"{counted(total, 'event')} arrived after events of the same partition that happened more "
        f"than {allowed} later.",
        lines_by_hour({"late": "late events"}, day.provisional_hours),
    )
    yield Table("Late events by topic", by_topic)
    if not day.has("dead_letters"):
        yield "There are no dead letters."
        return
    letters = day.sql(_letters(day))
    if letters.num_rows:
        yield Table("Dead letters", letters)
    else:
        yield "There are no dead letters of this day."


def _tiers(day: Day) -> Iterator[Block]:
    """What each tier should hold and holds, by the newest audit of each minute."""
    rows = day.sql("""
        with newest as (
            select * from appended_audit where in_day(minute) qualify row_number() over (
                partition by tier, name, topic, minute order by checked_at desc) = 1)
        select topic, tier, name, sum(expected) as expected, sum(found) as found,
            sum(greatest(expected - found, 0)) as missing,
            sum(doubled + greatest(found - expected, 0)) as surplus
        from newest group by topic, tier, name order by topic, tier, name""")
    uneven = [
        f"{row['topic']} ({' '.join(filter(None, (row['tier'], row['name'])))})"
        for row in rows.to_pylist()
        if row["missing"] or row["surplus"]
    ]
    if not rows.num_rows:
        yield "No audit of this day was kept."
    elif uneven:
        told = f"The books do not balance for {', '.join(uneven)}."
        yield Table("Expected and found per tier", rows, told)
    else:
        yield Table("Expected and found per tier", rows, "All tiers hold what they should.")


def _in_words(evidence: object) -> str:
    """The fields of an incident's evidence with their values."""
    if not isinstance(evidence, dict):
        return str(evidence)
    return ", ".join(f"{name.replace('_', ' ')} {text_of(v)}" for name, v in evidence.items())


def _by_hour(day: Day, counted_: str, columns: tuple[str, ...]) -> pa.Table:
    """Counts for every hour of the day; none for hours that have not begun."""
    chosen = ", ".join(
        f"coalesce({name}, 0) as {name}"
        if name.endswith("_before")
        else f"case when hour < {day.hours.stop} then coalesce({name}, 0) end as {name}"
        for name in columns
    )
    first = day.provisional_hours.start
    provisional = "" if day.is_settled else f", hour >= {first} as provisional"
    return day.sql(f"""
        select hour, {chosen}{provisional}
        from (select range::int as hour from range(24)) left join ({counted_}) using (hour)
        order by hour""")


def _against_day_before(day: Day, rows: pa.Table, column: str, title: str) -> Plot:
    series = {column: "this day"}
    kept = ["hour", column]
    if any(rows.column(f"{column}_before").to_pylist()):
        series[f"{column}_before"] = "the day before"
        kept.append(f"{column}_before")
    kept += ["provisional"] if not day.is_settled else []
    shown = rows.select(kept)
    begun = [row for row in shown.to_pylist() if row[column] is not None]
    peak = max(begun, key=lambda row: row[column])
    summary = f"The busiest hour began at {peak['hour']:02}:00 with {peak[column]:,} {column}"
    change = relative_change(peak[column], peak.get(f"{column}_before"))
    told = "" if change is None else f", {signed_percent(change)} against the day before"
    provisional = ""
    if day.provisional_hours:
        provisional = f" From {day.provisional_hours.start:02}:00 on, numbers are provisional."
    return Plot(
        title, shown, f"{summary}{told}.{provisional}", lines_by_hour(series, day.provisional_hours)
    )


def _leader(rows: pa.Table, name: str, value: str, thing: str, things: str = "") -> str:
    """The first of a list in a sentence."""
    first = rows.slice(0, 1).to_pylist()[0]
    return f"{first[name]} leads with {counted(first[value], thing, things)}."


def _health(condition: str, suffix: str = "") -> str:
    """Error share and percentiles of the requests that fulfill a condition."""
    durations = ", ".join(
        f"quantile_cont(duration_ms, {share}) filter ({condition}) as {name}_ms{suffix}"
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    )
    return f"""count(*) filter ({condition} and status >= 500)
        / nullif(count(*) filter ({condition}), 0) as error_share{suffix}, {durations}"""


def _errors_by_hour(day: Day) -> Plot:
    rows = day.sql(f"""
        with worst as (
            select service from events_requests where today group by service
            order by count(*) filter (status >= 500) desc, service limit {_GROUPS_MAX})
        select hour, service, count(*) as requests, count(*) filter (status >= 500) as errors,
            count(*) filter (status >= 500) / count(*) as error_share
        from events_requests join worst using (service) where today
        group by hour, service order by hour, service""")
    peak = max(rows.to_pylist(), key=lambda row: row["error_share"])
    summary = "No request failed."
    if peak["errors"]:
        summary = (
            f"Highest at {peak['hour']:02}:00, when {text_of(peak['error_share'], 'share')} of the "
            f"requests to {peak['service']} failed (status 500 or above)."
        )
    return Plot(
        "Failed requests by hour",
        rows,
        summary,
        groups_by_hour(
            "error_share",
            "service",
            sorted(set(rows.column("service").to_pylist())),
            provisional=day.provisional_hours,
        ),
    )


def _ranking_at(time: datetime) -> str:
    """The ranking as of a time. A place that became free has no time, but its batch has."""
    return f"""
        select * from (
            select *, coalesce(
                as_of, max(as_of) over (partition by category, _query, _batch)) as at_
            from appended_rankings)
        where at_ <= {instant(time)} qualify item is not null and row_number() over (
            partition by category, rank order by _written_at desc, _batch desc) = 1"""


def _letters(day: Day) -> str:
    """Dead letters by kind. A letter belongs to the day of the record before it in the log."""
    places = " union all ".join(
        f'select _topic, _partition, _offset, "at" from {view_name("raw_", topic)}'
        for topic in day.topics
    )
    return f"""
        select topic, coalesce(pipeline, 'load') as pipeline, stage,
            regexp_replace(reason, '\\d+', '…', 'g') as reason,
            sum(coalesce(offset_end - "offset", 1)) as records
        from dead_letters letters asof left join ({places}) places
            on letters.topic = places._topic and letters.partition = places._partition
            and letters.offset >= places._offset
        where in_day(places."at")
        group by all order by records desc, topic, pipeline, stage, reason limit 12"""
