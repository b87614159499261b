"""Sends rows as Avro with Confluent's serializer, which registers the schema.

    send_avro.py BOOTSTRAP REGISTRY TOPIC SCHEMA VALUES      VALUES is a JSON list of objects

It runs in an environment with that serializer and without Headrace.
"""

import json
import sys

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext


def main(bootstrap: str, registry: str, topic: str, schema: str, values: str) -> None:
    serialize = AvroSerializer(SchemaRegistryClient({"url": registry}), schema)
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in json.loads(values):
        where = SerializationContext(topic, MessageField.VALUE)
        producer.produce(topic, serialize(value, where))
    if producer.flush(60):
        sys.exit(f"{topic} did not take all values")


main(*sys.argv[1:])
