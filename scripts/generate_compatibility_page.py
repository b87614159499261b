"""Writes docs/compatibility.md from what the broker announces and from the differences kept here.

python scripts/generate_compatibility_page.py            write the page
python scripts/generate_compatibility_page.py --check    fail if it is not up to date
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from headrace.core.features import SUPPORTED  # noqa: E402
from headrace.wire.api import ANNOUNCED, SERVED, ApiKey, api_name  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"

INTRODUCTION = """\
# Compatibility

<!-- Written by scripts/generate_compatibility_page.py; do not edit. -->

Headrace speaks the Kafka wire protocol and keeps Kafka's files. The measure is Apache Kafka 4.3.1:
the same requests in the same versions, the same error codes, the same bytes on disk. This page
says what is served, what is not yet, and where the two differ on purpose. What each setting does
is in [configuration.md](configuration.md), the files are in [formats.md](formats.md).
"""

# Who judges, what, and with which command.
JUDGES = (
    (
        "confluent-kafka, kafka-python, aiokafka",
        "produce, consume, groups, transactions and administration over the wire",
        "`make test`",
    ),
    (
        "kio, and frames recorded from real clients and brokers",
        "every message and version of the codec, byte for byte",
        "`make test`",
    ),
    (
        "folders written by Apache Kafka 4.3.1",
        "that they open here with the same records, and compact alike",
        "`make test`",
    ),
    (
        "Kafka's own command line tools, of 3.9.1 and of 4.3.1",
        "that they work unchanged",
        "`make interop`",
    ),
    (
        "Kafka's DumpLogSegments, and a Kafka broker",
        "that they read the folders that we write",
        "`make interop`",
    ),
    (
        "kcat; kafka-python's own integration suite",
        "a C client in scripts; a foreign set of tests",
        "`make interop`",
    ),
    (
        "Kafka's TransactionalMessageCopier and its formatters",
        "transactions, and the records of the internal topics",
        "`make interop`",
    ),
    (
        "Kafka Streams 4.3.1, an application of exactly_once_v2",
        "that every record counts once while it and the broker are killed",
        "`make interop`",
    ),
    (
        "Spark 4.0.0 with its own Kafka jar",
        "that the same job gives the same table, and keys the same partition",
        "`make interop`",
    ),
    (
        "Apicurio's schema registry and Confluent's Avro serializer",
        "a Java program that keeps its state in topics; values that Spark reads by it",
        "`make interop`",
    ),
)

# Why an API that Kafka announces is not served here.
NOT_SERVED = {
    "quotas and users come with a later release": (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ),
    "there is no Raft quorum": (
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    ),
    "share groups come with a later release": (
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ),
    "streams groups come with a later release": (
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
    ),
}

# What needs a word beside the range of versions.
REMARKS = {
    ApiKey.PRODUCE: "0 to 2 are announced and close the connection, as in Kafka: librdkafka turns "
    "compression on by them",
    ApiKey.API_VERSIONS: "an unknown version is answered in version 0 with error 35",
    ApiKey.LIST_OFFSETS: "Kafka begins at 1; KafkaJS sends 0",
    ApiKey.ELECT_LEADERS: "on one node: ELECTION_NOT_NEEDED (84)",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "on one node: to itself, or cancel",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "on one node: none",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "a restart begins a copy anew, where Kafka goes on with it",
    ApiKey.DESCRIBE_ACLS: "SECURITY_DISABLED (54): there is no authorizer",
    ApiKey.CREATE_ACLS: "the same",
    ApiKey.DELETE_ACLS: "the same",
    ApiKey.CREATE_DELEGATION_TOKEN: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (64), as Kafka says to "
    "a client that did not authenticate",
    ApiKey.RENEW_DELEGATION_TOKEN: "the same",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "the same",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "the same",
    ApiKey.SASL_HANDSHAKE: "ILLEGAL_SASL_STATE (34), as Kafka says on a listener without SASL; "
    "TLS and SASL come with a later release",
    ApiKey.SASL_AUTHENTICATE: "ILLEGAL_SASL_STATE (34) too",
}

# What it is about, what Apache Kafka 4.3.1 does, what Headrace does and why.
DIFFERENCES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "What a producer sends": (
        (
            "records inside a batch",
            "unpacked and checked one by one",
            "only what the 61-byte batch header shows is checked (CRC, magic, codec, counts, "
            "one batch per partition, control bit, largest time), and the batch is stored as it "
            "came. `headrace.validate.records=true` unpacks and checks each, off the event loop; "
            "compacted topics always do",
        ),
        (
            "codec bits that name no codec, or records that do not unpack",
            "UNKNOWN_SERVER_ERROR (-1)",
            "INVALID_RECORD (87) with a message; the second only where records are unpacked",
        ),
        (
            "bytes after the batch",
            "fewer than 12 are ignored; more are CORRUPT_MESSAGE (2) unless they are a batch",
            "INVALID_RECORD (87), however many",
        ),
        (
            "the append-time bit set by the client",
            "accepted",
            "INVALID_TIMESTAMP (32): the bit is the broker's to set, and its times would be "
            "taken for the broker's",
        ),
        (
            "a refused batch",
            "the code, mostly without a message",
            "the code with a message that says what was expected",
        ),
    ),
    "Sizes and limits": (
        (
            "a request other than Produce above 16 MiB (Fetch: 2 MiB)",
            "taken up to `socket.request.max.bytes` (100 MB)",
            "the connection is closed: decoding such a frame would cost the others their share",
        ),
        (
            "requests in work on one connection",
            "one; the others wait in the socket",
            "up to 128 Produce requests; nothing is handled behind a request that waits, such as "
            "a long poll",
        ),
        (
            "half-received requests",
            "bounded by `queued.max.request.bytes` if set; the reader pauses",
            "always bounded (256 MiB or twice the largest request unless set); who would exceed "
            "it is disconnected",
        ),
    ),
    "Settings": (
        (
            "an unknown broker setting set over the wire",
            "kept, in case a plug-in knows it",
            "INVALID_REQUEST (42): there are no plug-ins, so it is a mistake",
        ),
        (
            "levels of broker loggers",
            "Java's loggers",
            "those of Python's `logging` under `headrace`",
        ),
        (
            "`listeners`, `node.id`, replication factors of internal topics",
            "every interface; must be given; 3",
            "127.0.0.1:9092; 1; 1. A node on its own is reached by nobody who was not meant to",
        ),
        (
            "telemetry (71, 72)",
            "announced when a receiver is installed",
            "never announced",
        ),
    ),
    "TransactionCoordinator": (
        (
            "InitProducerId of a producer whose epoch is no longer the last, while its successor "
            "has a transaction open",
            "the successor's transaction is aborted; the stale producer is fenced when it asks "
            "again",
            "PRODUCER_FENCED (90) at once: the successor goes on",
        ),
    ),
    "The log": (
        (
            "leader epoch of a partition after a restart of its only broker",
            "two higher: without a leader, then led again",
            "one higher: every start is a new reign",
        ),
        (
            "base timestamp of a batch that compaction rewrote",
            "that of the first record kept",
            "as it was, so that the records kept need not be rewritten; record times are the "
            "same either way",
        ),
        (
            "two keys with the same hash in compaction",
            "taken for one (MD5)",
            "taken for one (BLAKE2, 128 bits)",
        ),
        (
            "compaction",
            "`log.cleaner.threads` threads",
            "one child process, one log at a time, at the lowest priority",
        ),
        (
            "indexes of the active segment",
            "mapped, preallocated to `segment.index.bytes`",
            "in memory, written when flushed, rolled or closed; never preallocated",
        ),
        (
            "tiered storage",
            "with a plug-in",
            "none; its special timestamps in ListOffsets find nothing",
        ),
        (
            "ListOffsets by time after DeleteRecords",
            "finds nothing while a segment below the new start, with such a time, is on disk",
            "finds the first record from the new start on",
        ),
    ),
    "What a client is answered": (
        (
            "Metadata for a topic that it makes (`auto.create.topics.enable`)",
            "UNKNOWN_TOPIC_OR_PARTITION (3); it is there when the client asks again",
            "the topic with its leaders: it is made before the answer",
        ),
        (
            "FindCoordinator before the internal topic exists",
            "COORDINATOR_NOT_AVAILABLE (15); it is there when the client asks again",
            "the coordinator: the topic is made before the answer",
        ),
        (
            "a Fetch that its sizes cut short",
            "ends within a batch, which the client drops",
            "has whole batches only, up to the last index entry within the size",
        ),
        (
            "the order of topics, partitions and groups in an answer",
            "mostly that of a hash table",
            "mostly that of the request",
        ),
        (
            "a partition twice in one Produce, Fetch or DeleteRecords",
            "taken once",
            "taken and answered twice",
        ),
        (
            "an isolation level that there is not, in Fetch or ListOffsets",
            "UNKNOWN_SERVER_ERROR (-1)",
            "read as uncommitted",
        ),
    ),
    "The cluster": (
        (
            "where its state is kept",
            "a Raft log (`__cluster_metadata`)",
            "the tree of Kafka 3.9's ZooKeeper, in a SQLite file beside the logs",
        ),
        (
            "`metadata.version`",
            "changes what is written",
            "only tells tools which release this stands for",
        ),
    ),
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def versions(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def served_rows() -> Iterator[tuple[str, ...]]:
    for key in sorted(SERVED):
        first, last = SERVED[key]
        kafka = ANNOUNCED[key]
        yield (
            str(int(key)),
            api_name(key),
            versions(first, last),
            "the same" if kafka == (first, last) else versions(*kafka),
            REMARKS.get(key, ""),
        )


def missing_rows() -> Iterator[tuple[str, ...]]:
    reasons = {key: reason for reason, keys in NOT_SERVED.items() for key in keys}
    for key in sorted(ANNOUNCED.keys() - SERVED.keys()):
        yield str(int(key)), api_name(key), versions(*ANNOUNCED[key]), reasons[key]


def page() -> str:
    parts = [
        INTRODUCTION,
        "## Who says so\n",
        table(("judge", "what it judges", "run by"), JUDGES),
        "## Served\n",
        f"{len(SERVED)} of the {len(ANNOUNCED)} APIs that Apache Kafka 4.3.1 announces\n"
        "to clients, in every version that it announces. ApiVersions tells clients exactly this.\n",
        table(("key", "API", "versions", "Kafka 4.3.1", "remark"), served_rows()),
        "## Not served\n",
        "Not announced either, so clients do without or say that the broker cannot do it.\n",
        table(("key", "API", "versions of Kafka 4.3.1", "why"), missing_rows()),
        "## Features\n",
        table(
            ("feature", "levels"),
            ((f"`{name}`", versions(*levels)) for name, levels in SUPPORTED.items()),
        ),
        "## Where we differ\n",
    ]
    for subject, rows in DIFFERENCES.items():
        parts += [f"### {subject}\n", table(("what", "Apache Kafka 4.3.1", "Headrace"), rows)]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: make docs")
    else:
        PAGE.write_text(page())
