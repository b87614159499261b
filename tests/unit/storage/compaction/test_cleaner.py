"""The same log cleaned by Apache Kafka and by Headrace: the same batches survive."""

import json
import tarfile
from pathlib import Path

import pytest

from headrace.core.cleaning import LastOfProducer, SegmentSummary
from headrace.core.producer_state import Origin, Producers
from headrace.model.ids import Millis, Offset
from headrace.records.batch import BatchHeader, headers
from headrace.records.record import iter_records
from headrace.storage.compaction.cleaner import Cleaner
from headrace.storage.compaction.job import Job
from headrace.storage.compaction.swap import swap_in
from headrace.storage.producer_replay import read_marker
from headrace.world.files import SystemFiles
from headrace.world.job_host import Host

ARCHIVE = Path(__file__).parents[3] / "golden" / "compaction" / "kafka-4.3.1.tar.xz"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def batches(directory: Path) -> list[tuple[str, BatchHeader, bytes]]:
    found = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for position, header in headers(data):
            found.append((path.stem, header, data[position : position + header.size]))
    return found


def essence(segment: str, header: BatchHeader, batch: bytes) -> tuple[object, ...]:
    """Everything except the base timestamp, which Kafka moves to the first remaining record.

    No reader and no later cleaning can tell the difference. The base timestamp may also be a
    delete horizon, which depends on the time of the cleaning.
    """
    fields = header._replace(size=0, crc=0, base_timestamp=0)
    return segment, fields, list(iter_records(batch))


@pytest.mark.parametrize("number", [1, 2])
def test_kafka_and_headrace_leave_the_same_batches(golden: Path, number: int) -> None:
    facts = json.loads((golden / f"{number}.json").read_text())
    directory = golden / f"{number}-before"
    producers = Producers()
    for _, header, batch in batches(directory):
        if header.producer_id >= 0:
            marker = read_marker(batch) if header.is_control else None
            producers.append(
                header,
                Offset(header.base_offset),
                Millis(header.max_timestamp),
                Origin.REPLICATION,
                marker,
            )
            producers.written()
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    job = Job(
        directory=str(directory),
        segments=[
            SegmentSummary(base, (directory / f"{base:020d}.log").stat().st_size) for base in bases
        ],
        first_dirty=facts["first_dirty"],
        clean_end=facts["cleaned_end"],
        now=facts["now"],
        segment_size_max=1 << 20,
        index_size_max=10 << 20,
        index_interval_size=4096,
        delete_retention_ms=100,
        producers={
            producer_id: LastOfProducer(
                entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch
            )
            for producer_id, entry in producers.entries.items()
        },
        buffer_size=1 << 20,
        load_factor=0.9,
        bytes_per_second=1e18,
    )

    files = SystemFiles()
    done = Cleaner(
        job,
        Host(files, lambda response: None, lambda: 0.0, lambda seconds: None),
        lambda event: (
            swap_in(files, str(directory), event["replaces"], event["cleaned"])
            if "cleaned" in event
            else None
        ),
    ).run()

    assert done["cleaned_end"] == facts["cleaned_end"]
    expected = golden / f"{number}-after"
    assert [essence(*each) for each in batches(directory)] == [
        essence(*each) for each in batches(expected)
    ]
    for index in expected.glob("*.txnindex"):
        assert (directory / index.name).read_bytes() == index.read_bytes()
