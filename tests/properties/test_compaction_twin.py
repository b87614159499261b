"""Compaction against a simple model, over several rounds, with a crash anywhere in the swap."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.records.batch import headers
from headrace.records.record import Record
from headrace.storage.compaction.swap import settle_leftovers
from headrace.storage.index import OffsetIndex, TimeIndex
from tests.fakes.compactable import PLAIN, CompactableLog

calm = settings(deadline=None, suppress_health_check=list(HealthCheck))
RETENTION_MS = 1_000

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f" * 40])
pairs = st.tuples(keys | st.none(), st.none() | st.binary(max_size=60))
# Repeated records, as of offset commits: the same keys, values of one size.
repeated = st.builds(
    lambda keys, value: [(key, value) for key in keys],
    st.sampled_from([[b"a", b"b", b"c"], [b"b", b"c"], [b"c", None, b"a"], [b"d", b"a"]]),
    st.sampled_from([b"1111", b"2222", b"3333", None]),
)
steps = st.one_of(
    st.tuples(
        st.just("append"),
        st.sampled_from([PLAIN, PLAIN, 7, 8]),
        st.lists(pairs, min_size=1, max_size=6) | repeated,
        st.integers(0, 4),
    ),
    st.tuples(st.just("append"), st.just(PLAIN), repeated, st.just(0)),
    st.tuples(st.just("end"), st.sampled_from([7, 8]), st.booleans()),
    st.tuples(st.just("roll")),
)
rounds = st.lists(st.lists(steps, max_size=25), min_size=1, max_size=4)


def apply(log: CompactableLog, script: Iterable[tuple]) -> None:  # type: ignore[type-arg]
    for step in script:
        if step[0] == "append":
            log.append(step[2], producer_id=step[1], codec=step[3])
        elif step[0] == "end":
            log.end_transaction(step[1], commit=step[2])
        elif log.bases()[-1] != log.log_end:
            log.roll()


def replayed(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The last value of each key, as a consumer of these records sees it."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is not None:
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
    return state


def check_against_twin(log: CompactableLog) -> None:
    original = {record.offset: record for record, _, _ in log.records}
    committed = [r for r in original.values() if log.is_committed(r.offset)]
    stored = log.stored()

    # No record is invented, moved or reordered.
    assert [original.get(record.offset) for record in stored] == stored
    assert [record.offset for record in stored] == sorted({record.offset for record in stored})

    # A reader of the compacted log sees the same state as one that read every record ever written.
    # So does a reader that starts in the middle with the state up to there.
    read_committed = [record for record in stored if log.is_committed(record.offset)]
    assert replayed(read_committed) == replayed(committed)
    tombstones_gone = {r.offset for r in committed if r.value is None} - {r.offset for r in stored}
    if not tombstones_gone:
        for start in range(0, log.log_end + 1):
            before = [r for r in committed if r.offset < start]
            after = [r for r in read_committed if r.offset >= start]
            assert replayed(before + after) == replayed(committed)

    # The cleaned part has each key once, the newest, and no aborted records or records without key.
    cleaned_end = log.cleaned_end or 0
    newest = {
        record.key: record.offset
        for record in committed
        if record.offset < cleaned_end and record.key is not None
    }
    kept = [record for record in stored if record.offset < cleaned_end]
    assert all(newest.get(record.key) == record.offset for record in kept)
    valued = {offset for offset in newest.values() if original[offset].value is not None}
    assert valued <= {record.offset for record in kept}

    # Every producer's last batch is kept, and with it its sequence.
    held = {(header.producer_id, header.last_offset) for header, _ in log.batches()}
    for producer_id, entry in log.producers.entries.items():
        if entry.batches:
            assert (producer_id, entry.batches[-1].last_offset) in held


def check_indexes(log: CompactableLog) -> None:
    """Every entry of the new indexes points to a batch, and no timestamp exceeds its entry."""
    for base in log.bases():
        if not log.path(base, "index").exists():
            continue
        data = log.path(base).read_bytes()
        index = OffsetIndex.decode(log.path(base, "index").read_bytes(), len(data) or 1)
        times = TimeIndex.decode(log.path(base, "timeindex").read_bytes())
        found = dict(headers(data))
        for last_relative, position in zip(index.last_offsets, index.positions, strict=True):
            assert found[position].last_offset == base + last_relative
        largest = max((header.max_timestamp for header in found.values()), default=-1)
        assert times.last_timestamp == largest


@settings(calm, max_examples=150)
@given(rounds, st.sampled_from([24 * 3, 1 << 16]), st.integers(1, 3_000))
def test_a_compacted_log_has_the_same_state_as_the_whole_log(
    scripts: list[list[tuple]],
    buffer_size: int,
    step_ms: int,  # type: ignore[type-arg]
) -> None:
    with TemporaryDirectory() as directory:
        log = CompactableLog(Path(directory))
        now = 10_000
        for script in scripts:
            apply(log, script)
            apply(log, [("roll",)])
            for _ in range(2):
                log.clean(now, buffer_size=buffer_size)
                check_against_twin(log)
                check_indexes(log)
                now += step_ms


@settings(calm, max_examples=60)
@given(st.lists(steps, min_size=5, max_size=40))
def test_tombstones_stay_for_the_retention_time_and_go_after_it(
    script: list[tuple],  # type: ignore[type-arg]
) -> None:
    with TemporaryDirectory() as directory:
        log = CompactableLog(Path(directory))
        apply(log, script)
        for producer_id in (7, 8):
            log.end_transaction(producer_id, commit=True)
        apply(log, [("roll",)])
        committed = [r for r, _, _ in log.records if r.key and log.is_committed(r.offset)]
        newest = {record.key: record for record in committed}
        deleted = {r.offset for r in newest.values() if r.value is None}

        for now in (10_000, 10_000 + RETENTION_MS - 1):
            log.clean(now)
            assert {r.offset for r in log.stored() if r.value is None} == deleted
        log.clean(10_000 + RETENTION_MS)
        assert not any(record.value is None for record in log.stored())
        check_against_twin(log)


@settings(calm, max_examples=60)
@given(st.lists(steps, min_size=5, max_size=30), st.integers(0, 40), st.integers(0, 12))
def test_a_crash_anywhere_in_the_swap_loses_no_records_and_leaves_no_files(
    script: list[tuple],
    renames_until_crash: int,
    settles_until_crash: int,  # type: ignore[type-arg]
) -> None:
    class Crash(Exception):
        pass

    left = [renames_until_crash]

    def crash_in_time(*paths: str) -> None:
        if left[0] == 0:
            raise Crash
        left[0] -= 1

    with TemporaryDirectory() as directory:
        log = CompactableLog(Path(directory))
        apply(log, script)
        apply(log, [("roll",)])
        log.files.before("rename", crash_in_time)
        with suppress(Crash):
            log.clean(10_000)
        left[0] = settles_until_crash  # the start after the crash is killed too
        log.files.before("unlink", crash_in_time)
        with suppress(Crash):
            settle_leftovers(log.files, directory)
        log.files.repair("rename", "unlink")
        settle_leftovers(log.files, directory)

        assert settle_leftovers(log.files, directory) is False
        log.cleaned_end = None
        check_against_twin(log)
        log.clean(10_000)
        check_against_twin(log)
        check_indexes(log)
