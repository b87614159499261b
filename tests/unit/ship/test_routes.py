"""The topic of an event by rule."""

import pytest

from headrace.ship.events import PatternInvalid
from headrace.ship.routes import Routes, RuleInvalid


def test_files_select_a_topic():
    routes = Routes("logs", by_file=["visits=*/nginx/*", "other=*"])
    assert routes.of_file("/var/log/nginx/access.log") == "visits"
    assert routes.of_file("/var/log/app.log") == "other"
    assert routes.of_event("logs") is None
    assert routes.topics == ["logs", "visits", "other"]


def test_the_text_of_an_event_goes_before_its_file():
    topic_of = Routes("logs", by_text=["errors=ERROR|FATAL", "slow=took \\d{4,} ms"]).of_event("x")
    assert topic_of is not None
    assert topic_of(b"12:00 ERROR no") == "errors"
    assert topic_of(b"took 12345 ms") == "slow"
    assert topic_of(b"took 12 ms \xff") == "x"


def test_wrong_rules_are_explained():
    for rule in ("topic", "=x", "x="):
        with pytest.raises(RuleInvalid, match="expected TOPIC=PATTERN"):
            Routes("logs", by_text=[rule])
    with pytest.raises(PatternInvalid):
        Routes("logs", by_text=["errors=("])
