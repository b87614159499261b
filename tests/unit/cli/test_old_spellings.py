"""Kafka's scripts in Headrace's words: every line that people still bring, and their neighbours."""

import shlex

import pytest

from headrace.cli.old_spellings import Refusal, Translation, translated

BS = "--bootstrap-server localhost:9092"

# As written in Kafka's own documents of its first years and of today, in their order.
SAID = [
    ("kafka-server-start.sh config/server.properties", "serve config/server.properties"),
    ("kafka-server-start.sh config/server-1.properties", "serve config/server-1.properties"),
    (
        "kafka-server-start.sh -daemon config/server.properties",
        "serve config/server.properties -daemon",
    ),
    (
        "kafka-server-start config/server.properties --override broker.id=2",
        "serve config/server.properties -X broker.id=2",
    ),
    ("kafka-server-stop.sh", "stop"),
    ("kafka-server-stop.sh --help", "stop --help"),
    (f"kafka-topics.sh --create --topic test {BS}", "topics create test -b localhost:9092"),
    (f"kafka-topics.sh --describe --topic test {BS}", "topics describe test -b localhost:9092"),
    (
        f"kafka-topics.sh --create --replication-factor 2 --partitions 4 --topic disTopic {BS}",
        "topics create disTopic --partitions 4 --replicas 2 -b localhost:9092",
    ),
    (f"kafka-topics.sh --list {BS}", "topics list --names -b localhost:9092"),
    (
        "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 1 "
        "--partitions 1 --topic test",
        "topics create test --partitions 1 --replicas 1",
    ),
    (
        "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 3 "
        "--partitions 1 --topic my-replicated-topic",
        "topics create my-replicated-topic --partitions 1 --replicas 3",
    ),
    (
        "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 2 "
        "--partitions 12 --topic t",
        "topics create t --partitions 12 --replicas 2",
    ),
    ("kafka-topics.sh --list --zookeeper localhost:2181", "topics list --names"),
    (
        "kafka-topics.sh --describe --zookeeper localhost:2181 --topic test",
        "topics describe test",
    ),
    (
        "kafka-topics.sh --zookeeper localhost:2181/kafka --partitions 20 --alter --topic my-topic",
        "topics alter my-topic --partitions 20",
    ),
    (
        f"kafka-topics.sh {BS} --partitions 20 --alter --topic my-topic",
        "topics alter my-topic --partitions 20 -b localhost:9092",
    ),
    (
        "kafka-topics.sh --zookeeper localhost:2181 --create --topic my-topic --partitions 1 "
        "--replication-factor 1 --config max.message.bytes=64000 --config flush.messages=1",
        "topics create my-topic --partitions 1 --replicas 1 --config max.message.bytes=64000 "
        "--config flush.messages=1",
    ),
    (
        "kafka-topics.sh --zookeeper localhost:2181 --alter --topic my-topic "
        "--config max.message.bytes=128000",
        "configs set topic my-topic max.message.bytes=128000",
    ),
    (
        f"kafka-configs.sh {BS} --alter --entity-type topics --entity-name my-topic "
        "--add-config max.message.bytes=128000",
        "configs set topic my-topic max.message.bytes=128000 -b localhost:9092",
    ),
    (
        "kafka-topics.sh --zookeeper localhost:2181 --alter --topic my-topic "
        "--delete-config max.message.bytes",
        "configs unset topic my-topic max.message.bytes",
    ),
    (
        f"kafka-configs.sh {BS} --alter --entity-type topics --entity-name my-topic "
        "--delete-config max.message.bytes",
        "configs unset topic my-topic max.message.bytes -b localhost:9092",
    ),
    (
        "kafka-console-producer.sh --broker-list localhost:9092 --topic test",
        "produce test -b localhost:9092",
    ),
    (f"kafka-console-producer.sh {BS} --topic test", "produce test -b localhost:9092"),
    (f"kafka-console-consumer.sh {BS} --topic test", "consume test -b localhost:9092"),
    (
        f"kafka-console-consumer.sh {BS} --topic test --from-beginning",
        "consume test --from-beginning -b localhost:9092",
    ),
    (
        f"kafka-console-consumer.sh {BS} --topic test --partition 0 --offset 4",
        "consume test --partition 0 --offset 4 -b localhost:9092",
    ),
    (
        f"kafka-console-consumer.sh {BS} --topic test --consumer-property group.id=testGroup",
        "consume test --group testGroup -b localhost:9092",
    ),
    (
        f"kafka-console-consumer.sh {BS} --topic test --consumer-property group.id=testGroup2",
        "consume test --group testGroup2 -b localhost:9092",
    ),
    (
        "kafka-console-consumer.sh --zookeeper localhost:2181 --from-beginning --topic test",
        "consume test --from-beginning",
    ),
    # Any script without arguments prints its help.
    ("kafka-topics.sh", "topics --help"),
    ("kafka-console-producer.sh", "produce --help"),
    ("kafka-console-consumer.sh", "consume --help"),
    ("kafka-configs.sh", "configs --help"),
    ("kafka-server-start.sh", "serve --help"),
]

NEIGHBOURS = [
    # A script's options behind one of our nouns.
    ("topics --create --topic X", "topics create X"),
    ("topics --describe --topic X", "topics describe X"),
    ("topics --list", "topics list --names"),
    ("topics --delete --topic a,b --if-exists", "topics delete a b --yes --if-exists"),
    ("produce --broker-list h:1 --topic X", "produce X -b h:1"),
    ("consume X --zookeeper localhost:2181", "consume X"),
    ("consume X --consumer-property group.id=g", "consume X --group g"),
    ("configs --describe --entity-type brokers --entity-name 1", "configs get broker 1 --changed"),
    # The present scripts in full.
    ("/opt/kafka/bin/kafka-topics.sh --list", "topics list --names"),
    ("kafka-topics --list --exclude-internal", "topics list --names --no-internal"),
    ("kafka-topics --bootstrap-server=h:1 --list", "topics list --names -b h:1"),
    ("kafka-topics --create --if-not-exists --topic t", "topics create t --if-not-exists"),
    ("kafka-configs --broker-defaults --describe", "configs get broker default --changed"),
    (
        "kafka-configs --entity-type brokers --entity-default --alter --add-config a=1,b=[x,y]",
        "configs set broker default a=1 b=x,y",
    ),
    (
        "kafka-configs --topic t --alter --add-config a=1 --delete-config b,c",
        "configs set topic t a=1 --unset b --unset c",
    ),
    ("kafka-configs --broker-logger 1 --describe --all", "configs get broker-logger 1"),
    ("kafka-log-dirs --describe", "log-dirs --internal --format json"),
    (
        "kafka-log-dirs.sh --bootstrap-server h:1 --describe --broker-list 1,2 --topic-list t,u",
        "log-dirs t u --broker 1 --broker 2 --format json -b h:1",
    ),
    (
        "kafka-delete-records --bootstrap-server h:1 --offset-json-file f.json",
        "topics delete-records --file f.json --yes -b h:1",
    ),
    (
        "kafka-get-offsets --broker-list h:1 --topic t",
        "topics offsets t --time latest --plain -b h:1",
    ),
    (
        "kafka-get-offsets --topic t --partitions 0,2 --time -2",
        "topics offsets t:0,2 --time earliest --plain",
    ),
    (
        "kafka-run-class.sh kafka.tools.GetOffsetShell --topic t --time -1",
        "topics offsets t --time latest --plain",
    ),
    (
        "kafka-console-producer --topic t --property parse.key=true --property key.separator=:",
        "produce t --key-separator :",
    ),
    (
        "kafka-console-producer --topic t --reader-property parse.headers=true",
        r"produce t --header-separator '\t' --header-pair-separator :",
    ),
    (
        "kafka-console-producer --topic t --request-required-acks -1 --compression-codec --sync",
        "produce t --acks all --compression gzip -X batch.num.messages=1",
    ),
    (
        "kafka-console-producer --topic t --producer-property metadata.broker.list=h:1 "
        "--producer-property request.required.acks=1 --producer-property linger.ms=7",
        "produce t --acks 1 -X linger.ms=7 -b h:1",
    ),
    (
        "kafka-console-consumer --topic t --max-messages 5 --timeout-ms 1500 --group g",
        "consume t --max 5 --timeout 1.5 --group g",
    ),
    (
        "kafka-console-consumer --topic t --property print.key=true --property key.separator=:",
        r"consume t --format '%k:%s\n'",
    ),
    (
        "kafka-console-consumer --topic t --isolation-level read_committed "
        "--consumer.config c.properties",
        "consume t -X isolation.level=read_committed --client-config c.properties",
    ),
    (
        "kafka-producer-perf-test --topic t --num-records 10 --record-size 100 --throughput -1 "
        "--producer-props bootstrap.servers=h:1 acks=all linger.ms=1",
        "perf produce t --records 10 --size 100 --acks all -X linger.ms=1 -b h:1",
    ),
    (
        f"kafka-consumer-perf-test {BS} --topic t --messages 10",
        "perf consume t --records 10 -b localhost:9092",
    ),
    (
        "kafka-dump-log --files a.log,b.log --print-data-log",
        "dump-log a.log b.log --deep",
    ),
    (
        "kafka-run-class kafka.tools.DumpLogSegments --deep-iteration --files a.log",
        "dump-log a.log --deep",
    ),
    (
        f"kafka-consumer-groups.sh {BS} --describe --group testGroup",
        "groups describe testGroup -b localhost:9092",
    ),
    (f"kafka-consumer-groups.sh --list {BS}", "groups list --names -b localhost:9092"),
    ("kafka-consumer-groups --list --state", "groups list"),
    ("kafka-consumer-groups --describe --all-groups", "groups describe --all"),
    ("groups --describe --group g", "groups describe g"),
    ("kafka-topics --describe", "topics describe --internal"),
    ("kafka-get-offsets.sh", "topics offsets --help"),
    ("kafka-producer-perf-test.sh", "perf produce --help"),
    ("kafka-get-offsets --time -1", "topics offsets --internal --time latest --plain"),
    (
        "kafka-get-offsets --exclude-internal-topics",
        "topics offsets --time latest --plain",
    ),
    ("kafka-consumer-groups --describe --group g --members --verbose", "groups members g"),
    ("kafka-consumer-groups --delete --group g --group h", "groups delete g h"),
    (
        "kafka-consumer-groups --delete-offsets --group g --topic t:0,1",
        "groups delete-offsets g --topic t:0,1",
    ),
    (
        "kafka-consumer-groups --reset-offsets --group g --topic t:0 --to-earliest --execute",
        "groups reset g --topic t:0 --to earliest --execute",
    ),
    (
        "kafka-consumer-groups --reset-offsets --group g --all-topics --to-offset 4 --dry-run",
        "groups reset g --to 4",
    ),
    (
        "kafka-consumer-groups --reset-offsets --group g --all-topics --shift-by -10",
        "groups reset g --shift -10",
    ),
    (
        "kafka-consumer-groups --reset-offsets --group g --by-duration P1DT2H30M",
        "groups reset g --to 1d2h30m",
    ),
    (
        "kafka-consumer-groups --reset-offsets --group g --from-file plan.csv --execute",
        "groups reset g --from-file plan.csv --execute",
    ),
    (
        f"kafka-transactions.sh {BS} list --duration-filter 9000",
        "transactions list --longer-than 9000ms -b localhost:9092",
    ),
    ("kafka-transactions describe --transactional-id tx", "transactions describe tx"),
    (
        "kafka-transactions find-hanging --topic t --partition 0 --max-transaction-timeout 20",
        "transactions find-hanging t:0 --older-than 20m",
    ),
    (
        "kafka-transactions abort --topic t --partition 0 --start-offset 7",
        "transactions abort t:0 --start-offset 7 --yes",
    ),
    ("kafka-dump-log --verify-index-only --files a.index", "dump-log a.index --verify-index"),
]

REFUSED = [
    ("zookeeper-server-start.sh config/zookeeper.properties", "headrace serve"),
    ("zookeeper-server-stop.sh", "headrace serve"),
    ("zookeeper-shell.sh 127.0.0.1:2181", "headrace serve"),
    ("zkServer.sh status", "headrace serve"),
    ("kafka-consumer-groups.sh --describe", "--group is missing"),
    ("kafka-consumer-groups.sh --list --state Stable", "headrace groups list"),
    ("kafka-consumer-groups.sh --describe --group g --state", "headrace groups list"),
    ("kafka-consumer-groups.sh --delete --all-groups", "--group is missing"),
    ("kafka-acls.sh --list", "no equivalent here; 'headrace --help'"),
    ("connect-standalone.sh worker.properties", "no equivalent here"),
    ("kafka-consumer-groups.sh --group g --reset-offsets --execute", "headrace groups reset"),
    ("kafka-consumer-groups.sh --group g --reset-offsets --to-latest --shift-by 1", "one place"),
    ("kafka-consumer-groups.sh --group g --reset-offsets --by-duration 2h", "ISO 8601"),
    ("kafka-consumer-groups.sh --group g --group h --delete-offsets --topic t", "at a time"),
    ("kafka-transactions.sh describe-producers --topic t --partition 0", "find-hanging"),
    ("kafka-transactions.sh abort --topic t --partition 0", "--start-offset"),
    ("kafka-reassign-partitions.sh --zookeeper z:2181 --execute", "another of log.dirs"),
    ("kafka-preferred-replica-election.sh --zookeeper z:2181", "nothing to elect"),
    (
        "kafka-run-class.sh kafka.admin.ShutdownBroker --zookeeper z:2181 --broker 1 "
        "--num.retries 3 --retry.interval.ms 60",
        "headrace stop",
    ),
    # Another machine's ZooKeeper does not tell where its brokers are.
    (
        "kafka-topics.sh --delete --topic t --zookeeper prod-1:2181,prod-2:2181/kafka",
        "'headrace topics delete t --yes -b HOST:9092'",
    ),
    ("kafka-topics.sh --alter --topic t --partitions 3 --config a=1", "'headrace topics alter t"),
    ("kafka-topics.sh --create --topic 'a.*|b'", "headrace topics list"),
    ("kafka-topics.sh --create --list --topic t", "give one of"),
    ("kafka-topics.sh --create", "--topic is missing"),
    ("kafka-topics.sh --topics-with-overrides --describe", "headrace topics --help"),
    ("kafka-topics.sh --create --topic", "needs a value"),
    ("kafka-console-consumer.sh --topic t --property schema.registry.url=x", "no equivalent"),
    ("kafka-console-consumer.sh --topic t --value-deserializer com.x.Avro", "Java class"),
    ("kafka-configs.sh --describe --entity-type users", "not served here"),
    ("kafka-get-offsets.sh --topic t --time -4", "tiered"),
    ("kafka-run-class.sh kafka.Kafka", "Java class"),
    ("kafka-server-stop.sh --node-id=1", "headrace stop"),
    ("kafka-storage.sh random-uuid", "no formatting"),
    ("kafka-e2e-latency.sh localhost:9092 orders 1000 1 100", "headrace perf latency"),
    ("kafka-groups.sh --list", "headrace groups list"),
]


@pytest.mark.parametrize(("old", "new"), SAID + NEIGHBOURS, ids=lambda text: text[:70])
def test_an_old_line_is_understood(old, new):
    said = translated(shlex.split(old))
    assert isinstance(said, Translation), said
    assert said.arguments == shlex.split(new)
    # Said once more it stays as it is: a translation is no old spelling itself.
    assert translated(said.arguments) == Translation(said.arguments)


@pytest.mark.parametrize(("old", "answer"), REFUSED, ids=lambda text: text[:70])
def test_what_cannot_be_said_is_refused_with_what_can(old, answer):
    said = translated(shlex.split(old))
    assert isinstance(said, Refusal), said
    assert answer in said.message
    assert "\n" not in said.message


@pytest.mark.parametrize(
    "line",
    [
        "",
        "topics create orders --config a=1 -b h:1",
        "topics list --names",
        "consume orders --from-beginning --partition 0 --offset 4 --group g",
        "produce orders --headers a=b",
        "configs set topic orders a=1 --unset b",
        "serve server.properties -daemon",
        "nonsense --topic t",
    ],
)
def test_new_spellings_are_left_alone(line):
    assert translated(shlex.split(line)) == Translation(shlex.split(line))


@pytest.mark.parametrize(
    ("old", "remark"),
    [
        ("kafka-topics --list --zookeeper localhost:2181", "--zookeeper is gone"),
        ("kafka-console-producer --topic t --broker-list h:1", "--broker-list is now"),
        (
            "kafka-console-producer --topic t --producer-property serializer.class=x.Y",
            "without effect",
        ),
        ("kafka-topics --alter --topic t --config a=1", "headrace configs set"),
    ],
)
def test_what_was_replaced_is_remarked(old, remark):
    said = translated(shlex.split(old))
    assert isinstance(said, Translation)
    assert any(remark in text for text in said.remarks)
