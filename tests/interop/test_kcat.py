"""kcat, the C command line client that many scripts use."""

import json
import shutil
import subprocess

import pytest

from bench import topics
from bench.node import Node

from . import directories, records

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt-get install kcat)"
)


def kcat(node: Node, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", node.address, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_lists_brokers_topics_and_leaders(headrace_node: Node) -> None:
    topics.create(headrace_node.address, "seen", partitions=3)
    shown = json.loads(kcat(headrace_node, "-L", "-J"))
    assert [broker["name"] for broker in shown["brokers"]] == [headrace_node.address]
    (topic,) = [entry for entry in shown["topics"] if entry["topic"] == "seen"]
    assert [entry["partition"] for entry in topic["partitions"]] == [0, 1, 2]
    broker_id = shown["brokers"][0]["id"]
    assert {entry["leader"] for entry in topic["partitions"]} == {broker_id}


@pytest.mark.parametrize("codec", records.CODECS)
def test_what_kcat_produces_kcat_consumes(headrace_node: Node, codec: str) -> None:
    topics.create(headrace_node.address, "cat")
    lines = "".join(f"key{i}:the value that belongs to it {i}\n" for i in range(500))
    kcat(headrace_node, "-P", "-t", "cat", "-K", ":", "-z", codec, "-H", "from=kcat", stdin=lines)
    shown = kcat(headrace_node, "-C", "-t", "cat", "-o", "beginning", "-e", "-q", "-K", ":")
    assert shown == lines
    seen = records.read(headrace_node.address, "cat")
    assert {record.headers for record in seen} == {(("from", b"kcat"),)}
    wanted = {records.CODECS.index(codec)} - {0}
    assert directories.codecs_in(headrace_node.data / "cat-0") == wanted


def test_kcat_creates_a_topic_by_producing_to_it_and_reads_from_any_offset(
    headrace_node: Node,
) -> None:
    kcat(headrace_node, "-P", "-t", "fresh", stdin="".join(f"{i}\n" for i in range(100)))
    shown = kcat(headrace_node, "-C", "-t", "fresh", "-o", "90", "-e", "-q")
    assert shown.split() == [str(i) for i in range(90, 100)]
    shown = kcat(headrace_node, "-C", "-t", "fresh", "-o", "-5", "-e", "-q")
    assert shown.split() == [str(i) for i in range(95, 100)]


def test_kcat_finds_offsets_by_time(headrace_node: Node) -> None:
    topics.create(headrace_node.address, "timed")
    start_ms = records.minutes_ago(60)
    records.write_every_kind(headrace_node.address, "timed", start_ms=start_ms)
    shown = kcat(headrace_node, "-Q", "-t", f"timed:0:{start_ms + 20_000}")
    assert "offset 1200" in shown  # the first record of the third codec
