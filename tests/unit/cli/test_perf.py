"""The values that ``headrace perf`` sends."""

from headrace.cli.perf import payloads


def test_payloads_are_distinct_letters_of_the_asked_size():
    made = payloads(100)
    assert len(set(made)) == len(made) > 1
    assert {len(value) for value in made} == {100}
    assert all(value.isalpha() for value in made)
    assert made == payloads(100), "runs can be compared"


def test_large_payloads_are_few():
    assert sum(map(len, payloads(900_000))) <= 16 * 1024 * 1024
    assert [len(value) for value in payloads(50_000_000)] == [50_000_000]
    assert set(payloads(0)) == {b""}
