"""Partition directories copied from one broker to another, and Kafka's checks of their files."""

import re
import shutil
from pathlib import Path

from bench import apache_kafka

_DUMP = "org.apache.kafka.tools.DumpLogSegments"

# Printed by DumpLogSegments if log and index disagree, or an index is not in order.
_PROBLEMS = re.compile(
    r"mismatch|out of order|not found|isvalid: false|corrupt|exception|failed|less than",
    re.IGNORECASE,
)
# The tool reports the first record of a later segment as one that follows -1.
_HOLE = re.compile(r"^ *\d+ is followed by \d+", re.MULTILINE)


def dump(files: list[Path], *options: str, with_holes: bool = False) -> str:
    """Kafka's dump of some files of one partition. Fails if Kafka finds a problem.

    ``with_holes`` is for compacted logs, where offsets may be missing.
    """
    names = ",".join(str(file) for file in files)
    done = apache_kafka.tool(_DUMP, "--files", names, *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    # The paths may contain any text.
    said = (done.stdout + done.stderr).replace(str(files[0].parent), "")
    faults = [line for line in said.splitlines() if _PROBLEMS.search(line)]
    assert not faults, "\n".join(faults[:20])
    assert with_holes or not _HOLE.findall(said)
    return done.stdout


def sound_to_kafka(directory: Path, *, with_holes: bool = False) -> str:
    """Let Kafka check every file of a partition directory. Return its dump of the log."""
    logs = sorted(directory.glob("*.log"))
    dumped = dump(logs, "--deep-iteration", "--print-data-log", with_holes=with_holes)
    indexes = sorted(directory.glob("*.index"))
    dump(indexes, "--verify-index-only")
    dump(indexes, "--index-sanity-check")
    if times := sorted(directory.glob("*.timeindex")):
        dump(times, "--verify-index-only")
        dump(times, "--index-sanity-check")
    for suffix in ("*.txnindex", "*.snapshot"):
        if others := [file for file in sorted(directory.glob(suffix)) if file.stat().st_size]:
            dump(others)
    return dumped


def producer_states(directory: Path) -> list[str]:
    """The producers in the newest snapshot of a directory, one line each, as Kafka prints them.

    We write several batches of a producer. Kafka keeps the last.
    """
    newest = max(directory.glob("*.snapshot"))
    lines = dump([newest]).splitlines()
    last = {line.split()[1]: line for line in lines if line.startswith("producerId:")}
    return sorted(last.values())


def codecs_in(directory: Path) -> set[int]:
    """The numbers of the codecs of the batches in a directory, except for no compression."""
    found = set()
    for file in directory.glob("*.log"):
        log = file.read_bytes()
        position = 0
        while position < len(log):
            found.add(log[position + 22] & 7)  # the low byte of the batch's attributes
            position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
    return found - {0}


def carry(source: Path, target: Path) -> None:
    """Replace the files of one partition directory with those of another; keep the topic ID."""
    for file in target.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in source.iterdir():
        if file.name != "partition.metadata":
            shutil.copy2(file, target / file.name)
