"""The feed, ranking and security jobs through the runner, from generated events to topics."""

import json
from typing import Any

import pytest

from headrace.pipeline.generate.sending import generate_day
from headrace.pipeline.jobs import feed, security
from headrace.pipeline.loading import load
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run_once
from headrace.pipeline.runner.settings import RunSettings
from headrace.testing import Broker
from tests.spark import test_jobs_feed, test_jobs_ranking, test_jobs_security
from tests.spark.batches import sorted_rows
from tests.spark.kit import Topics
from tests.spark.test_jobs_security import DAY, MEMBERS, generated

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS, SEED = 20_000, 2
JOBS = ("ranking", "security", "feed")


def decoded(topics: Topics, name: str) -> list[tuple[str, Any]]:
    """Keys and values of a topic; None is the value of a key that was deleted."""
    return [
        (record.key().decode(), json.loads(record.value()) if record.value() else None)
        for record in topics.read(name)
    ]


def test_jobs_through_the_runner_give_what_the_models_compute(spark: Any, tmp_path: Any) -> None:
    with Broker(process=True) as broker:
        bootstrap = broker.bootstrap_servers
        generate_day(bootstrap, DAY, events=EVENTS, seed=SEED, members=MEMBERS, broken=False)
        settings = RunSettings(
            tmp_path / "warehouse",
            {"kafka.bootstrap.servers": bootstrap},
            batch_records_max=EVENTS // 5,
        )
        progress = list(run_once(JOBS, spark, settings))
        topics = Topics(bootstrap)
        sent = {name: decoded(topics, name) for name in ("feeds", "alerts", "block-list")}

    def table(job: str, name: str) -> Any:
        (node,) = (node for node in load(job).nodes if node.name == name)
        return job_table(node, settings).shown(spark).toArrow()

    batches = {job: sum(one.pipeline == job for one in progress) for job in JOBS}
    assert min(batches.values()) > 1, batches

    # An event may come later than ten minutes: security drops it, the others take it.
    names = ("page-views", "posts", "logins", "api-calls")
    limits = {rule.kind: rule.events for rule in security.RULES}
    model = test_jobs_security.Model(generated(names, EVENTS, SEED)[1], limits, security.TARGETS)
    incidents = model.incidents()
    assert {row["incident_id"] for row in table("security", "incidents").to_pylist()} == set(
        incidents
    )
    assert len(incidents) > 3
    assert sorted(value["incident_id"] for _, value in sent["alerts"]) == sorted(incidents)
    assert all(
        value["evidence"]["events"] >= value["evidence"]["allowed"] for _, value in sent["alerts"]
    )
    # The events that close the day come an hour after it, so all blocks have ended.
    assert dict(sent["block-list"]) == dict.fromkeys(value["client"] for _, value in sent["alerts"])

    names = ("follows", "posts", "votes", "comments")
    given = generated(names, EVENTS, SEED, lateness_s=None)[1]
    feeds = test_jobs_feed.Model(given, feed.LENGTH, feed.POPULAR).feeds()
    assert test_jobs_feed.by_key(table("feed", "feeds").to_pylist(), "member") == feeds
    topic = {int(key): value for key, value in dict(sent["feeds"]).items() if value}
    assert {
        member: [entry["event_id"] for entry in value["entries"]] for member, value in topic.items()
    } == {
        member: [entry["event_id"] for entry in value["entries"]] for member, value in feeds.items()
    }

    names = ("votes", "ratings", "impressions", "clicks")
    given = generated(names, EVENTS, SEED, lateness_s=None)[1]
    assert sorted_rows(table("ranking", "item_scores")) == sorted_rows(
        test_jobs_ranking.expected_scores(given)
    )
    ranked = table("ranking", "rankings").to_pylist()
    assert {row["category"] for row in ranked if row["rank"] == 1} == set(
        given["votes"]["category"].to_pylist()
    )
