"""Frames recorded between real clients and Apache Kafka (scripts/record_golden.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.model.errors import PeerBroken
from headrace.wire import framing, schema
from headrace.wire.api import ApiKey, api_name, request_class, response_class
from tests.unit.wire.message_values import encoded, every_message_and_version
from tests.unit.wire.test_schema_against_kio import KIO_CLASSES

GOLDEN = Path(__file__).parents[2] / "golden"


def entries(name: str) -> list[Any]:
    lines = (GOLDEN / f"{name}.jsonl").read_text().splitlines()
    return [
        pytest.param(entry, id=f"{entry['from']}: {entry['api']} {entry['version']}")
        for entry in map(json.loads, lines)
    ]


def key_of(entry: dict[str, Any]) -> int:
    return next(key for key in ApiKey if api_name(key) == entry["api"])


@pytest.mark.parametrize("entry", entries("requests"))
def test_a_client_request_is_decoded_completely_and_encoded_identically(
    entry: dict[str, Any],
) -> None:
    frame = bytes.fromhex(entry["frame"])
    header = framing.parse_request_header(frame, 0, len(frame))
    assert (api_name(header.api_key), header.api_version) == (entry["api"], entry["version"])

    decode = schema.decoder(request_class(header.api_key), header.api_version)
    request, position = decode(frame, header.body_position, len(frame))
    assert position == len(frame)

    again = framing.encode_request(
        header.api_key, header.api_version, header.correlation_id, header.client_id, request
    )
    assert again[4:].hex() == frame.hex()
    for end in range(header.body_position, len(frame)):
        with pytest.raises(PeerBroken):
            decode(frame, header.body_position, end)


@pytest.mark.parametrize("entry", entries("responses"))
def test_a_response_of_kafka_is_decoded_completely_and_encoded_identically(
    entry: dict[str, Any],
) -> None:
    frame = bytes.fromhex(entry["frame"])
    api_key, api_version = key_of(entry), entry["version"]
    correlation_id, body_position = framing.parse_response_header(
        frame, 0, len(frame), api_key, api_version
    )
    decode = schema.decoder(response_class(api_key), api_version)
    response, position = decode(frame, body_position, len(frame))
    assert position == len(frame)

    again = framing.encode_response(api_key, api_version, correlation_id, response)
    assert again[4:].hex() == frame.hex()


def test_three_python_clients_and_the_java_client_are_recorded() -> None:
    senders = {entry.values[0]["from"].rpartition(" ")[0] for entry in entries("requests")}
    assert senders >= {"confluent-kafka", "kafka-python", "aiokafka", "Apache Kafka tools"}


def rewritten() -> list[dict[str, Any]]:
    lines = (GOLDEN / "rewritten.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_frames_that_kafka_decodes_and_encodes_identically_are_the_same_here() -> None:
    """The versions that kio does not know (scripts/record_rewritten.py)."""
    for entry in rewritten():
        frame = bytes.fromhex(entry["frame"])
        message, position = schema.decoder(entry["message"], entry["version"])(frame, 0, len(frame))
        assert position == len(frame), entry
        assert encoded(message, entry["version"]).hex() == entry["frame"], entry


def test_every_version_is_compared_with_kio_or_with_kafka() -> None:
    judged = {(entry["message"], entry["version"]) for entry in rewritten()}
    judged |= {(name, known) for name, versions in KIO_CLASSES.items() for known in versions}
    assert judged >= set(every_message_and_version())
