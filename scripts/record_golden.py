"""Record frames between real clients and Apache Kafka into tests/golden.

    python scripts/record_golden.py --kafka 127.0.0.1:9092
    python scripts/record_golden.py --kafka 127.0.0.1:9092 --label kafka-topics-4.3.1 \\
        --run 'bin/kafka-topics.sh --bootstrap-server {bootstrap} --list'

Without ``--run``, the script uses confluent-kafka, kafka-python and aiokafka to send as many
kinds of requests as they can. A proxy between client and broker puts its own address into the
responses, so that the client keeps using it. It stores the first request of each client, API and
version, and the broker's first response of each API and version. Existing entries stay. Frames
that contain a path of the recording machine are not stored.
"""

import argparse
import asyncio
import json
import re
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from headrace.wire import framing, schema
from headrace.wire.api import ApiKey, api_name, request_class, response_class
from headrace.wire.session import parse_response

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
FRAME_SIZE_MAX = 4096
LOCAL_PATH = re.compile(rb"/(tmp|home|root|work|opt|usr|var)")


class Recording:
    """Frames by sender, API and version; one file of JSON lines per direction."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], str] = {}
        self.responses: dict[tuple[str, str, int], str] = {}
        self.client = ""
        self.broker = ""
        for name, frames in (("requests", self.requests), ("responses", self.responses)):
            path = GOLDEN / f"{name}.jsonl"
            for line in path.read_text().splitlines() if path.exists() else []:
                entry = json.loads(line)
                frames[entry["from"], entry["api"], entry["version"]] = entry["frame"]

    def keep(self, sender: str, api_key: int, api_version: int, frame: bytes) -> None:
        frames = self.responses if sender == self.broker else self.requests
        if len(frame) <= FRAME_SIZE_MAX and not LOCAL_PATH.search(frame):
            frames.setdefault((sender, api_name(api_key), api_version), frame.hex())

    def save(self) -> None:
        GOLDEN.mkdir(exist_ok=True)
        for name, frames in (("requests", self.requests), ("responses", self.responses)):
            lines = [
                json.dumps({"from": sender, "api": api, "version": api_version, "frame": frame})
                for (sender, api, api_version), frame in sorted(frames.items())
            ]
            (GOLDEN / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


class Proxy:
    """Forward frames in both directions, on an event loop in a separate thread."""

    def __init__(self, kafka: tuple[str, int], recording: Recording) -> None:
        self.kafka = kafka
        self.recording = recording
        self.port = 0
        self.ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()
        self.ready.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._listen())
        self.loop.run_forever()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kafka_reader, kafka_writer = await asyncio.open_connection(*self.kafka)
        asked: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        answers = asyncio.create_task(self._pass_responses(kafka_reader, writer, asked))
        self.tasks.add(answers)
        answers.add_done_callback(self.tasks.discard)
        try:
            while True:
                frame = await read_frame(reader)
                if (request := self._note_request(frame)) is not None:
                    asked.put_nowait(request)
                write_frame(kafka_writer, frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            kafka_writer.close()

    def _note_request(self, frame: bytes) -> tuple[int, int] | None:
        """The API key and version of the request; None if the broker will not answer it."""
        header = framing.parse_request_header(frame, 0, len(frame))
        recording = self.recording
        recording.keep(recording.client, header.api_key, header.api_version, frame)
        if header.api_key == ApiKey.PRODUCE:
            decode = schema.decoder(request_class(0), header.api_version)
            request: Any = decode(frame, header.body_position, len(frame))[0]
            if request.acks == 0:
                return None
        return header.api_key, header.api_version

    async def _pass_responses(
        self,
        kafka_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: asyncio.Queue[tuple[int, int]],
    ) -> None:
        try:
            while True:
                frame = await read_frame(kafka_reader)
                api_key, api_version = await asked.get()
                self.recording.keep(self.recording.broker, api_key, api_version, frame)
                write_frame(writer, self._with_own_address(frame, api_key, api_version))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _with_own_address(self, frame: bytes, api_key: int, api_version: int) -> bytes:
        if api_key not in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER):
            return frame
        received = parse_response(frame, api_key, api_version)
        response: Any = received.decode(response_class(api_key))
        nodes = [response] if api_key == ApiKey.FIND_COORDINATOR else response.brokers
        for node in [*nodes, *getattr(response, "coordinators", [])]:
            if node.port == self.kafka[1]:
                node.port = self.port
        return bytes(
            framing.encode_response(api_key, api_version, received.correlation_id, response)[4:]
        )


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(4, "big") + frame)


def drive_confluent_kafka(bootstrap: str, topic: str) -> None:
    import confluent_kafka as ck
    from confluent_kafka import admin as ca

    admin = ca.AdminClient({"bootstrap.servers": bootstrap})

    def attempt(futures: Any) -> None:
        for future in futures.values() if isinstance(futures, dict) else [futures]:
            try:
                future.result(timeout=10)
            except ck.KafkaException as refused:
                print("  refused:", refused)

    attempt(admin.create_topics([ca.NewTopic(topic, 2, 1, config={"retention.ms": "60000"})]))
    attempt(admin.create_partitions([ca.NewPartitions(topic, 3)]))
    resource = ca.ConfigResource(ca.ConfigResource.Type.TOPIC, topic)
    attempt(admin.describe_configs([resource]))
    resource.add_incremental_config(
        ca.ConfigEntry("retention.ms", "70000", incremental_operation=ca.AlterConfigOpType.SET)
    )
    attempt(admin.incremental_alter_configs([resource]))
    attempt(admin.alter_configs([ca.ConfigResource("topic", topic, {"retention.ms": "80000"})]))
    admin.list_topics(timeout=10)
    attempt(admin.describe_cluster())
    attempt(admin.describe_topics(ck.TopicCollection([topic])))
    binding = (
        ca.ResourceType.TOPIC,
        topic,
        ca.ResourcePatternType.LITERAL,
        "User:golden",
        "*",
        ca.AclOperation.READ,
        ca.AclPermissionType.ALLOW,
    )
    attempt(admin.create_acls([ca.AclBinding(*binding)]))
    attempt(admin.describe_acls(ca.AclBindingFilter(*binding)))
    attempt(admin.delete_acls([ca.AclBindingFilter(*binding)]))

    for settings in (
        {"enable.idempotence": True, "compression.type": "zstd"},
        {"acks": "1"},
        {"transactional.id": topic},
    ):
        producer = ck.Producer({"bootstrap.servers": bootstrap, **settings})
        transactional = "transactional.id" in settings
        if transactional:
            producer.init_transactions(10)
            producer.begin_transaction()
        for key in range(3):
            producer.produce(topic, key=f"key{key}", value=b"value", headers={"h": b"1"})
        producer.flush(10)
        if transactional:
            consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
            positions = [ck.TopicPartition(topic, 0, 1)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 10)
            producer.commit_transaction(10)
            consumer.close()
    for protocol in ("classic", "consumer"):
        group = {"group.id": f"{topic}-{protocol}", "group.protocol": protocol}
        consumer = ck.Consumer(
            {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", **group}
        )
        consumer.subscribe([topic])
        wait_for(lambda consumer=consumer: consumer.poll(1.0) is not None)  # type: ignore[misc]
        consumer.commit(asynchronous=False)
        consumer.committed([ck.TopicPartition(topic, 0)], timeout=10)
        consumer.get_watermark_offsets(ck.TopicPartition(topic, 0), timeout=10)
        consumer.offsets_for_times([ck.TopicPartition(topic, 0, 1)], timeout=10)
        attempt(admin.list_consumer_groups())
        attempt(admin.describe_consumer_groups([f"{topic}-{protocol}"]))
        consumer.close()
    attempt(admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(topic)]))
    attempt(
        admin.alter_consumer_group_offsets(
            [ck.ConsumerGroupTopicPartitions(topic, [ck.TopicPartition(topic, 0, 1)])]
        )
    )
    attempt(admin.list_offsets({ck.TopicPartition(topic, 0): ca.OffsetSpec.latest()}))
    attempt(admin.delete_records([ck.TopicPartition(topic, 0, 1)]))
    attempt(admin.describe_user_scram_credentials())
    attempt(admin.elect_leaders(ck.ElectionType.PREFERRED, [ck.TopicPartition(topic, 0)]))
    attempt(admin.delete_consumer_groups([f"{topic}-classic"]))
    attempt(admin.delete_topics([topic]))


def drive_kafka_python(bootstrap: str, topic: str) -> None:
    import kafka
    import kafka.admin as ka
    import kafka.errors

    def attempt(action: Callable[[], Any]) -> None:
        try:
            action()
        except (kafka.errors.KafkaError, AttributeError, TypeError, ValueError) as refused:
            print("  refused:", repr(refused))

    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    attempt(lambda: admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}}))
    attempt(lambda: admin.create_partitions({topic: 3}))
    attempt(lambda: admin.list_topics())
    attempt(lambda: admin.describe_topics([topic]))
    attempt(lambda: admin.describe_cluster())
    resource = ka.ConfigResource(ka.ConfigResourceType.TOPIC, topic)
    attempt(lambda: admin.describe_configs([resource]))
    changed = ka.ConfigResource(ka.ConfigResourceType.TOPIC, topic, {"retention.ms": "60000"})
    for incremental in (True, False):
        attempt(lambda i=incremental: admin.alter_configs([changed], incremental=i))
    attempt(lambda: admin.describe_log_dirs())
    attempt(lambda: admin.list_config_resources())
    attempt(lambda: admin.describe_topic_partitions([topic]))
    attempt(lambda: admin.alter_partition_reassignments({kafka.TopicPartition(topic, 0): [1]}))
    attempt(lambda: admin.list_partition_reassignments())
    attempt(lambda: admin.elect_leaders(0, {topic: [0]}))
    pattern = ka.ResourcePattern(ka.ResourceType.TOPIC, topic)
    grant = ("User:golden", "*", ka.ACLOperation.READ, ka.ACLPermissionType.ALLOW, pattern)
    attempt(lambda: admin.create_acls([ka.ACL(*grant)]))
    attempt(lambda: admin.describe_acls(ka.ACLFilter(*grant)))
    attempt(lambda: admin.delete_acls([ka.ACLFilter(*grant)]))
    for settings in ({"compression_type": "gzip"}, {"transactional_id": topic}):
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **settings)
        transactional = "transactional_id" in settings
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for key in range(3):
            producer.send(topic, key=f"key{key}".encode(), value=b"value")
        producer.flush(10)
        if transactional:
            position = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(1, "", -1)}
            attempt(lambda p=producer, o=position: p.send_offsets_to_transaction(o, topic))
            producer.commit_transaction()
        producer.close()
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    wait_for(lambda: bool(consumer.poll(timeout_ms=1000)))
    consumer.commit()
    partition = kafka.TopicPartition(topic, 0)
    attempt(lambda: consumer.committed(partition))
    attempt(lambda: consumer.offsets_for_times({partition: 1}))
    attempt(lambda: consumer.end_offsets([partition]))
    attempt(lambda: admin.list_groups())
    attempt(lambda: admin.describe_groups([topic]))
    attempt(lambda: admin.list_group_offsets(topic))
    consumer.close()
    attempt(lambda: admin.delete_records({partition: 1}))
    attempt(lambda: admin.delete_groups([topic]))
    attempt(lambda: admin.delete_topics([topic]))
    admin.close()


def drive_aiokafka(bootstrap: str, topic: str) -> None:
    asyncio.run(_drive_aiokafka(bootstrap, topic))


async def _drive_aiokafka(bootstrap: str, topic: str) -> None:
    import aiokafka
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 2, 1)])
    await admin.list_topics()
    await admin.describe_cluster()
    await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    for settings in ({}, {"enable_idempotence": True}, {"transactional_id": topic}):
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
        await producer.start()
        if "transactional_id" in settings:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"value", key=b"key")
                position = {aiokafka.TopicPartition(topic, 0): 1}
                await producer.send_offsets_to_transaction(position, topic)
        else:
            await producer.send_and_wait(topic, b"value", key=b"key")
        await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    await consumer.start()
    await asyncio.wait_for(consumer.getone(), 20)
    await consumer.commit()
    partition = aiokafka.TopicPartition(topic, 0)
    await consumer.committed(partition)
    await consumer.offsets_for_times({partition: 1})
    await consumer.end_offsets([partition])
    await admin.list_consumer_groups()
    await admin.describe_consumer_groups([topic])
    await admin.list_consumer_group_offsets(topic)
    await consumer.stop()
    await admin.delete_topics([topic])
    await admin.close()


def wait_for(condition: Callable[[], bool], limit_s: float = 30) -> None:
    give_up_at = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"the client was not done after {limit_s:.0f} s")


CLIENTS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": drive_confluent_kafka,
    "kafka-python": drive_kafka_python,
    "aiokafka": drive_aiokafka,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kafka", default="127.0.0.1:9092", help="Address of the broker to record."
    )
    parser.add_argument("--broker-label", default="Apache Kafka 4.3.1", help="Name and version.")
    parser.add_argument("--prefix", default="golden", help="Prefix of topics and groups.")
    parser.add_argument("--run", help="Command to record; {bootstrap} is replaced.")
    parser.add_argument("--label", help="Client and version of the command.")
    arguments = parser.parse_args()
    host, _, port = arguments.kafka.rpartition(":")
    recording = Recording()
    recording.broker = arguments.broker_label
    proxy = Proxy((host, int(port)), recording)
    proxy.start()
    bootstrap = f"127.0.0.1:{proxy.port}"
    if arguments.run:
        recording.client = arguments.label
        subprocess.run(shlex.split(arguments.run.format(bootstrap=bootstrap)), check=False)
    for client, drive in () if arguments.run else CLIENTS.items():
        recording.client = f"{client} {package_version(client)}"
        print(recording.client)
        drive(bootstrap, f"{arguments.prefix}-{uuid.uuid4().hex[:8]}")
    recording.save()
    print(f"{len(recording.requests)} requests, {len(recording.responses)} responses")


if __name__ == "__main__":
    main()
