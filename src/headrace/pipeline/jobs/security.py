"""Security: crawlers, scrapers, spammers, password guessers and API clients above their limit.

Events of a client are counted in buckets of ten seconds. A client over a limit in a sliding window
of a minute is an incident: one for each client, kind and day (UTC).

Rules only ask for high counts, so more events never take an incident back, and the same events make
the same incidents in any batches. The batch that finds an incident which the table does not have
sends the alert.

Blocks end by the clock of the events: the newest bucket of any client.
"""

from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from headrace.pipeline import example, source, step, table, topic
from headrace.pipeline.events import EVENT_ID, EVENT_TIME, SCHEMAS

TRIGGER: Final = "1 second"
EVENTS: Final = {
    "event_time": EVENT_TIME,
    "event_id": EVENT_ID,
    "lateness": "10 minutes",
    "late": "drop",
}
BUCKET: Final = 10  # seconds
WINDOW: Final = 60  # seconds
# Buckets of a client are kept for as long before its newest one, so that the windows of late events
# are complete. Events that are later than their lateness are dropped: no alert would help then.
KEPT: Final = "interval 20 minutes"
# A client without events for as long is forgotten. No event that comes in time is in a window with
# its last one: the lateness, a clock that is ahead, and a window are less.
IDLE: Final = "interval 30 minutes"
BLOCKED: Final = "interval 1 hour"  # after the last bucket over the limit
# An incident may change, and its client may be blocked, for as long after its last bucket.
OPEN: Final = "interval 2 days"


class Rule(NamedTuple):
    """The events, and the different targets, that an incident needs in a window."""

    kind: str
    events: int
    targets: int = 1


RULES: Final = (
    Rule("crawler", 120, 60),  # pages viewed without a referrer, by an agent that names itself bot
    Rule("scraper", 120, 60),  # the same by other agents
    Rule("spam", 10),  # posts
    Rule("login-guessing", 10),  # accounts to which a login failed
    Rule("api-limit", 300),  # endpoints called
)
# Of the targets in a bucket the smallest hashes are kept, as many as any rule asks for. Sets of
# smallest hashes merge exactly, in any order, and tell the number of targets up to this one.
TARGETS: Final = max(rule.targets for rule in RULES)
CLIENTS: Final = """kind string, client string,
    buckets array<struct<bucket: timestamp, events: bigint, targets: array<bigint>>>"""
EVIDENCE: Final = "struct<events: bigint, targets: bigint, allowed: int, seconds: int>"
INCIDENTS: Final = f"""incident_id string, kind string, client string, since timestamp,
    until timestamp, evidence {EVIDENCE}, score double"""


@source("page-views", schema=SCHEMAS["page-views"], **EVENTS)
def page_views(records: DataFrame) -> DataFrame:
    return records


@source("posts", schema=SCHEMAS["posts"], **EVENTS)
def posts(records: DataFrame) -> DataFrame:
    return records


@source("logins", schema=SCHEMAS["logins"], **EVENTS)
def logins(records: DataFrame) -> DataFrame:
    return records


@source("api-calls", schema=SCHEMAS["api-calls"], **EVENTS)
def api_calls(records: DataFrame) -> DataFrame:
    return records


@step
def observed(
    page_views: DataFrame, posts: DataFrame, logins: DataFrame, api_calls: DataFrame
) -> str:
    """What clients did, and to what."""
    return f"""
        with events as (
            select if(agent rlike '(?i)bot|crawler|spider', 'crawler', 'scraper') as kind, client,
                at, page as target
            from page_views
            where referrer is null
            union all
            select 'spam', client, at, text from posts
            union all
            select 'login-guessing', client, at, account from logins where not succeeded
            union all
            select 'api-limit', client, at, endpoint from api_calls
        )
        select kind, client, timestamp_seconds(unix_seconds(at) div {BUCKET} * {BUCKET}) as bucket,
            1L as events, array(xxhash64(target)) as targets
        from events
        where client is not null
    """


@step
def touched_clients(observed: DataFrame, clients: DataFrame) -> str:
    """All buckets of the clients of this batch.

    The kind ``clock`` is of no client: its bucket is the newest of all.
    """
    return f"""
        with added as (
            select * from observed
            union all
            select 'clock', '', max(bucket), 0, array() from observed having count(*) > 0
        ),
        known as (
            select /*+ broadcast(added) */ *
            from clients left semi join added using (kind, client)
        ),
        buckets as (
            select kind, client, bucket, sum(events) as events,
                slice(array_sort(array_distinct(flatten(collect_list(targets)))), 1, {TARGETS})
                    as targets
            from (
                select * from added
                union all
                select kind, client, inline(buckets) from known
                distribute by kind, client
            )
            group by kind, client, bucket
        )
        select kind, client, array_sort(collect_list(struct(bucket, events, targets))) as buckets
        from buckets
        group by kind, client
    """


@table(key=["kind", "client"], schema=CLIENTS, trigger=TRIGGER)
def clients(touched_clients: DataFrame, clients: DataFrame) -> str:
    """Recent buckets of each client. Clients that are idle are forgotten."""
    return f"""
        with clock as (
            select array_max(buckets).bucket as now from touched_clients where kind = 'clock'
        )
        select kind, client, if(kind = 'clock', slice(buckets, -1, 1),
            filter(buckets, one -> one.bucket > array_max(buckets).bucket - {KEPT})) as buckets,
            kind <> 'clock' and array_max(buckets).bucket <= now - {IDLE} as _deleted
        from touched_clients cross join clock
        union all
        select kind, client, null, true
        from clients left anti join touched_clients using (kind, client) cross join clock
        where array_max(buckets).bucket <= now - {IDLE}
    """


@step
def changed_incidents(touched_clients: DataFrame, open_incidents: DataFrame) -> str:
    """Incidents of the clients that break a rule in a window, as they are after this batch.

    Windows are summed only for clients that have enough events in all their buckets together.
    """

    def of_kind(numbers: dict[str, int]) -> str:
        pairs = ", ".join(f"'{kind}', {number}" for kind, number in numbers.items())
        return f"map({pairs})[kind]"

    allowed = of_kind({rule.kind: rule.events for rule in RULES})
    least_targets = of_kind({rule.kind: rule.targets for rule in RULES})
    return f"""
        with suspects as (
            select kind, client, {allowed} as allowed, inline(buckets)
            from touched_clients
            where aggregate(buckets, 0L, (sum, one) -> sum + one.events) >= {allowed}
        ),
        windows as (
            select kind, client, allowed, bucket, sum(events) over minute as events,
                collect_list(targets) over minute as targets
            from suspects
            window minute as (
                partition by kind, client order by unix_seconds(bucket)
                range between {WINDOW - BUCKET} preceding and current row)
        ),
        over as (
            select kind, client, allowed, bucket, events,
                least(size(array_distinct(flatten(targets))), {TARGETS}) as targets
            from windows
            where events >= allowed
        ),
        found as (
            select concat_ws('/', kind, client, date(bucket)) as incident_id, kind, client,
                allowed, min(bucket) as since, max(bucket) + interval {BUCKET} seconds as until,
                max(events) as events, bigint(max(targets)) as targets
            from over
            where targets >= {least_targets}
            group by kind, client, allowed, date(bucket)
        ),
        joined as (
            select found.*, known.incident_id is null as is_new,
                least(found.since, known.since) as first,
                greatest(found.until, known.until) as last,
                struct(greatest(events, known.evidence.events) as events,
                    greatest(targets, known.evidence.targets) as targets,
                    allowed, {WINDOW} as seconds) as evidence
            from found left join open_incidents as known on known.incident_id = found.incident_id
        )
        select incident_id, kind, client, first as since, last as until, evidence,
            round(evidence.events / allowed, 2) as score, is_new
        from joined
    """


@table(key=["incident_id"], trigger=TRIGGER)
def incidents(changed_incidents: DataFrame) -> DataFrame:
    """All incidents. No batch reads them, however many there are."""
    return changed_incidents.drop("is_new")


@table(key=["incident_id"], schema=INCIDENTS, trigger=TRIGGER)
def open_incidents(
    changed_incidents: DataFrame, touched_clients: DataFrame, open_incidents: DataFrame
) -> str:
    """Incidents that may still change, or whose clients are blocked."""
    columns = "incident_id, kind, client, since, until, evidence, score"
    return f"""
        with clock as (
            select array_max(buckets).bucket as now from touched_clients where kind = 'clock'
        )
        select {columns}, until + {OPEN} <= now as _deleted from changed_incidents cross join clock
        union all
        select {columns}, true
        from open_incidents left anti join changed_incidents using (incident_id) cross join clock
        where until + {OPEN} <= now
    """


@topic("alerts", key="client", trigger=TRIGGER)
def alerts(changed_incidents: DataFrame) -> DataFrame:
    return changed_incidents.where("is_new").drop("is_new")


@step
def changed_blocks(
    touched_clients: DataFrame,
    changed_incidents: DataFrame,
    open_incidents: DataFrame,
    blocked: DataFrame,
) -> str:
    """Blocks that this batch starts, makes longer or ends."""
    return f"""
        with clock as (
            select array_max(buckets).bucket as now from touched_clients where kind = 'clock'
        ),
        parts as (
            select client, kind, since, until + {BLOCKED} as until, null as known
            from changed_incidents
            union all
            select client, kind, since, until + {BLOCKED}, null from open_incidents
            union all
            select client, null, null, null, struct(why, since, until) from blocked
        ),
        joined as (
            select client, if(count_if(until > now) = 0, null, struct(
                    concat_ws(', ', array_sort(collect_set(kind) filter (where until > now)))
                        as why,
                    min(since) filter (where until > now) as since,
                    max(until) filter (where until > now) as until)) as block,
                max(known) as known
            from parts cross join clock
            group by client
        )
        select client, block.*, block is null as _deleted
        from joined
        where not block <=> known
    """


@table(
    key=["client"],
    schema="client string, why string, since timestamp, until timestamp",
    trigger=TRIGGER,
)
def blocked(changed_blocks: DataFrame) -> DataFrame:
    return changed_blocks


@topic("block-list", key="client", compacted=True, trigger=TRIGGER)
def block_list(changed_blocks: DataFrame) -> DataFrame:
    return changed_blocks


@example
def a_client_that_guesses_passwords_is_blocked_once() -> tuple[Any, dict[str, Any]]:
    logins = [
        {
            "event_id": str(second),
            "at": f"2026-03-01T12:00:{second:02}Z",
            "client": "10.0.0.1",
            "account": f"account-{second}",
            "succeeded": False,
        }
        for second in range(20)
    ]
    alert = {"kind": "login-guessing", "client": "10.0.0.1", "since": "2026-03-01T12:00:00Z"}
    return (
        [{"logins": logins[:15]}, {"logins": logins[15:]}],
        {
            "alerts": [alert],
            "blocked": [
                {
                    "client": "10.0.0.1",
                    "why": "login-guessing",
                    "until": "2026-03-01T13:00:20Z",
                }
            ],
        },
    )
