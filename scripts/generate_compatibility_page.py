"""Write docs/compatibility.md from the announced APIs and the list of differences below.

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

Headrace implements the Kafka wire protocol and Kafka's file formats. The reference is Apache Kafka
4.3.1: the same requests in the same versions, the same error codes, the same bytes on disk. This
page lists the supported APIs, the missing ones, and the intended differences.
[configuration.md](configuration.md) describes every setting, [formats.md](formats.md) the files.
"""

# The tests of compatibility: with what, of what, and by which command.
CHECKS = (
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
        "log directories written by Apache Kafka 4.3.1",
        "they open with the same records and compact in the same way",
        "`make test`",
    ),
    (
        "Kafka's command line tools, 3.9.1 and 4.3.1",
        "they work unchanged",
        "`make interop`",
    ),
    (
        "Apache Kafka 3.9.1 brokers in one cluster with Headrace, on ZooKeeper",
        "either kind leads, follows, controls and coordinates, and takes the other's place",
        "`make interop`",
    ),
    (
        "Kafka's DumpLogSegments, and a Kafka broker",
        "they read log directories of Headrace",
        "`make interop`",
    ),
    (
        "kcat; the integration tests of kafka-python",
        "a C client in scripts; the tests of another project",
        "`make interop`",
    ),
    (
        "Kafka's TransactionalMessageCopier and its formatters",
        "transactions, and the records of internal topics",
        "`make interop`",
    ),
    (
        "Kafka Streams 4.3.1, an application with exactly_once_v2",
        "every record counts once, though the application and the broker are killed",
        "`make interop`",
    ),
    (
        "Spark 4.0.0 with its own Kafka jar",
        "the same job gives the same table, and keys go to the same partitions",
        "`make interop`",
    ),
    (
        "Apicurio's schema registry and Confluent's Avro serializer",
        "a Java program with its state in topics; values that Spark reads with its schemas",
        "`make interop`",
    ),
)

# Why Headrace does not support an API that Kafka announces.
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

# Remarks on supported APIs.
REMARKS = {
    ApiKey.PRODUCE: "0 to 2 are announced and close the connection, as in Kafka: librdkafka "
    "enables compression only if they are announced",
    ApiKey.API_VERSIONS: "the response to an unknown version has version 0 and error 35",
    ApiKey.LIST_OFFSETS: "Kafka starts at 1, but KafkaJS sends 0",
    ApiKey.ELECT_LEADERS: "on one node: ELECTION_NOT_NEEDED (84)",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "moves replicas between brokers; on one node: to itself",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "on one node: none",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "a restart starts the copy again; Kafka continues it",
    ApiKey.DESCRIBE_ACLS: "SECURITY_DISABLED (54): there is no authorizer",
    ApiKey.CREATE_ACLS: "the same",
    ApiKey.DELETE_ACLS: "the same",
    ApiKey.CREATE_DELEGATION_TOKEN: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (64), as in Kafka for "
    "a client that has not authenticated",
    ApiKey.RENEW_DELEGATION_TOKEN: "the same",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "the same",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "the same",
    ApiKey.SASL_HANDSHAKE: "ILLEGAL_SASL_STATE (34), as in Kafka on a listener without SASL; "
    "TLS and SASL come with a later release",
    ApiKey.SASL_AUTHENTICATE: "the same",
}

# Subject, behavior of Apache Kafka 4.3.1, behavior of Headrace and the reason.
DIFFERENCES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Produced batches": (
        (
            "records inside a batch",
            "unpacked and checked one by one",
            "only the 61-byte batch header is checked (CRC, magic, codec, counts, one batch per "
            "partition, control bit, maximum timestamp), and the batch is stored as sent. "
            "`headrace.validate.records=true` unpacks and checks every record in a child process; "
            "compacted topics always do",
        ),
        (
            "an unknown codec, or records that cannot be unpacked",
            "UNKNOWN_SERVER_ERROR (-1)",
            "INVALID_RECORD (87) with a message; the second only if records are unpacked",
        ),
        (
            "bytes after the batch",
            "fewer than 12 are ignored; more are CORRUPT_MESSAGE (2), unless they are a batch",
            "always INVALID_RECORD (87)",
        ),
        (
            "the append-time bit set by the client",
            "accepted",
            "INVALID_TIMESTAMP (32): otherwise the client's timestamps would look like those of "
            "the broker",
        ),
        (
            "a refused batch",
            "the error code, mostly without a message",
            "the error code and a message with the expected value",
        ),
    ),
    "Sizes and limits": (
        (
            "a request other than Produce above 16 MiB (Fetch: 2 MiB)",
            "accepted up to `socket.request.max.bytes` (100 MB)",
            "the connection is closed: decoding such a request would delay other clients",
        ),
        (
            "in-flight requests of one connection",
            "one; the others wait in the socket",
            "up to 128 Produce requests; requests after one that waits, such as a long poll, wait "
            "too",
        ),
        (
            "memory for partly received requests",
            "bounded by `queued.max.request.bytes` if set; the broker stops reading",
            "always bounded (if not set, by 256 MiB or twice `socket.request.max.bytes`); a "
            "connection that needs more is closed",
        ),
    ),
    "Settings": (
        (
            "a client sets an unknown broker setting",
            "stored, because a plug-in may know it",
            "INVALID_REQUEST (42): there are no plug-ins, so it is a mistake",
        ),
        (
            "a line of a properties file without `=` or `:`",
            "the name ends at the first blank; the value may be empty",
            "the start fails with the file and the line: it is a mistake",
        ),
        (
            "broker loggers",
            "loggers of Java classes",
            "Python loggers below `headrace`",
        ),
        (
            "`listeners`, `node.id`, replication factors of internal topics",
            "every interface; required; 3",
            "127.0.0.1:9092; 1; 1. Other machines can connect only if the configuration says so",
        ),
        (
            "telemetry (71, 72)",
            "announced if a receiver is installed",
            "never announced",
        ),
    ),
    "Transactions": (
        (
            "InitProducerId of a producer with an old epoch, while the producer with the current "
            "epoch has an open transaction",
            "the open transaction is aborted; the old producer is fenced when it tries again",
            "PRODUCER_FENCED (90) immediately; the open transaction continues",
        ),
    ),
    "The log": (
        (
            "leader epoch of a partition after a restart of its only broker",
            "two higher: one change to no leader, one to the leader again",
            "one higher: every start is a new term as leader",
        ),
        (
            "base timestamp of a batch after compaction",
            "that of the first remaining record",
            "unchanged, so that the remaining records need no rewriting; their timestamps are the "
            "same",
        ),
        (
            "two keys with the same hash in compaction",
            "treated as one key (MD5)",
            "treated as one key (BLAKE2, 128 bits)",
        ),
        (
            "compaction",
            "`log.cleaner.threads` threads",
            "one child process, one log at a time, at the lowest priority",
        ),
        (
            "indexes of the active segment",
            "memory-mapped, preallocated to `segment.index.bytes`",
            "in memory; written when the segment is flushed, rolled or closed; never preallocated",
        ),
        (
            "tiered storage",
            "with a plug-in",
            "none; ListOffsets with its special timestamps returns nothing",
        ),
        (
            "ListOffsets by time after DeleteRecords",
            "returns nothing while a segment before the new start with such a timestamp is on disk",
            "returns the first record from the new start on",
        ),
    ),
    "Responses": (
        (
            "Metadata for a missing topic (`auto.create.topics.enable`)",
            "UNKNOWN_TOPIC_OR_PARTITION (3); the topic exists when the client tries again",
            "the topic with its leaders: it is created before the response",
        ),
        (
            "FindCoordinator before the internal topic exists",
            "COORDINATOR_NOT_AVAILABLE (15); the topic exists when the client tries again",
            "the coordinator: the topic is created before the response",
        ),
        (
            "a Fetch response limited by its sizes",
            "ends within a batch, which the client drops",
            "has only complete batches, up to the last index entry within the size",
        ),
        (
            "the order of topics, partitions and groups in a response",
            "mostly that of a hash table",
            "mostly that of the request",
        ),
        (
            "a partition twice in one Produce, Fetch or DeleteRecords",
            "handled once",
            "handled and answered twice",
        ),
        (
            "an unknown isolation level in Fetch or ListOffsets",
            "UNKNOWN_SERVER_ERROR (-1)",
            "treated as read_uncommitted",
        ),
    ),
    "The cluster": (
        (
            "cluster state",
            "a Raft log (`__cluster_metadata`)",
            "the tree of Kafka 3.9: in ZooKeeper, or for a node alone in a SQLite file",
        ),
        (
            "`metadata.version`",
            "changes what is written",
            "only tells tools the corresponding release",
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
        "## How it is tested\n",
        table(("with", "what is tested", "run by"), CHECKS),
        "## Supported APIs\n",
        f"{len(SERVED)} of the {len(ANNOUNCED)} APIs that Apache Kafka 4.3.1 announces to\n"
        "clients, in every version that it announces. ApiVersions returns exactly these.\n",
        table(("key", "API", "versions", "Kafka 4.3.1", "remark"), served_rows()),
        "## Missing APIs\n",
        "These are not announced, so clients do without them or report that the broker does not "
        "support them.\n",
        table(("key", "API", "versions of Kafka 4.3.1", "why"), missing_rows()),
        "## Features\n",
        table(
            ("feature", "levels"),
            ((f"`{name}`", versions(*levels)) for name, levels in SUPPORTED.items()),
        ),
        "## Differences\n",
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
