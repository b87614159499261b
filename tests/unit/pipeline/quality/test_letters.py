"""Equal letters, selections, and the summary."""

from headrace.pipeline.quality.letters import Letter, Place, Wanted, each_once, summarize

LETTER = Letter(
    pipeline=None,
    table="raw/views",
    stage="decode",
    rule=None,
    reason="not UTF-8: invalid start byte at byte 3",
    topic="views",
    topic_id="a",
    partition=0,
    offset=5,
    offset_end=6,
    timestamp_ms=1000,
    written_ms=2000,
)
OF_PIPELINE = LETTER._replace(pipeline="p", table=None, topic_id=None)


def test_a_letter_that_was_written_twice_is_there_once_as_it_was_written_last():
    again = LETTER._replace(written_ms=3000, reason="another")
    assert each_once([LETTER, again]) == each_once([again, LETTER]) == [again]


def test_letters_of_other_stages_records_and_pipelines_are_others():
    others = [
        LETTER,
        LETTER._replace(stage="late"),
        LETTER._replace(offset=6),
        LETTER._replace(partition=1),
        LETTER._replace(topic_id="b"),
        OF_PIPELINE,
        OF_PIPELINE._replace(pipeline="q"),
    ]
    assert len(each_once(others)) == len(others)


def test_the_timestamp_tells_topics_apart_whose_id_is_not_known():
    recreated = OF_PIPELINE._replace(timestamp_ms=9000)
    assert len(each_once([OF_PIPELINE, recreated])) == 2


def test_the_newest_letters_come_first():
    older = LETTER._replace(offset=1, written_ms=1000)
    beside = LETTER._replace(offset=4)
    assert each_once([older, LETTER, beside]) == [beside, LETTER, older]


def test_a_selection():
    assert Wanted().selects(LETTER)
    assert Wanted(pipeline="p").selects(OF_PIPELINE) and not Wanted(pipeline="p").selects(LETTER)
    for wanted, other in [
        (Wanted(topic="views"), Wanted(topic="clicks")),
        (Wanted(stage="decode"), Wanted(stage="late")),
        (Wanted(since_ms=2000), Wanted(since_ms=2001)),
        (Wanted(places=[Place("views", 0, 5)]), Wanted(places=[Place("views", 0, 6)])),
    ]:
        assert wanted.selects(LETTER) and not other.selects(LETTER)


def test_a_range_of_lost_records_is_found_by_each_of_its_offsets():
    lost = LETTER._replace(stage="lost", offset_end=8)
    at = [offset for offset in range(10) if lost.is_at(Place("views", 0, offset))]
    assert at == [5, 6, 7]


def test_the_summary_joins_reasons_that_differ_in_numbers():
    letters = [
        OF_PIPELINE._replace(
            offset=n, offset_end=n + 1, reason=f"at is 2100-01-0{n} 00:00:00, too far"
        )
        for n in (1, 2)
    ]
    (kind,) = summarize(letters)
    assert (kind.reason, kind.records, kind.origin) == ("at is …, too far", 2, "pipeline p")


def test_a_reason_that_all_share_is_shown_as_it_is():
    letters = [LETTER, LETTER._replace(offset=6, offset_end=7, written_ms=2500)]
    (kind,) = summarize(letters)
    assert kind.reason == LETTER.reason
    assert (kind.last_written_ms, kind.example) == (2500, "views:0:6")


def test_frequent_kinds_come_first_and_a_range_counts_its_records():
    lost = LETTER._replace(stage="lost", offset_end=105, reason="retention")
    found = summarize([LETTER, lost])
    assert [(one.stage, one.records) for one in found] == [("lost", 100), ("decode", 1)]
