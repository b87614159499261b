"""The values that ``headrace perf`` sends, and how figures are shown."""

import json

from headrace.cli.options import Format
from headrace.cli.percentiles import Percentiles
from headrace.cli.perf_report import payloads, show


def test_payloads_are_distinct_letters_of_the_requested_size():
    made = payloads(100)
    assert len(set(made)) == len(made) > 1
    assert {len(value) for value in made} == {100}
    assert all(value.isalpha() for value in made)
    assert made == payloads(100), "runs can be compared"


def test_large_payloads_are_few():
    assert sum(map(len, payloads(900_000))) <= 16 * 1024 * 1024
    assert [len(value) for value in payloads(50_000_000)] == [50_000_000]
    assert set(payloads(0)) == {b""}


def test_a_latency_without_records_has_no_chart(capsys):
    show(Format.TABLE, {"records": 0}, {"acknowledgement": Percentiles()})
    assert capsys.readouterr().out.splitlines() == ["FIGURE   VALUE", "records  0"]
    show(Format.JSON, {"records": 0}, {"acknowledgement": Percentiles()})
    assert json.loads(capsys.readouterr().out) == {"records": 0, "acknowledgement_ms": None}
