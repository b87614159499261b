"""Decoders of damaged frames raise PeerBroken and use no more memory than the frame justifies."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import PeerBroken
from headrace.wire import framing, schema
from headrace.wire.schema import Message
from tests.unit.wire.message_values import Values, encoded, every_message_and_version

# Wrong lengths, counts and varints, at any position in the frame.
WRONG_NUMBERS = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80" * 12,
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\xff",
)
MUTATIONS_PER_VERSION = 130


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """One to three mutations: flipped bits, wrong numbers, a piece removed or doubled."""
    frame = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(frame))
        wound = rng.randrange(5)
        if wound == 0 and place < len(frame):
            frame[place] ^= 1 << rng.randrange(8)
        elif wound == 1:
            number = rng.choice(WRONG_NUMBERS)
            frame[place : place + len(number)] = number
        elif wound == 2:
            frame[place:place] = rng.choice(WRONG_NUMBERS)
        elif wound == 3:
            del frame[place : place + rng.randint(1, 8)]
        else:
            frame[place:place] = frame[place : place + rng.randint(1, 8)]
    return bytes(frame)


def weight(value: object) -> int:
    """The number of array elements in a message, at all levels."""
    if isinstance(value, list):
        return len(value) + sum(weight(item) for item in value)
    if isinstance(value, Message):
        return sum(weight(getattr(value, name)) for name in value.__slots__)
    return 0


@pytest.mark.slow
def test_mutated_frames_are_decoded_or_refused_within_their_own_size() -> None:
    tried = refused = 0
    for name, message_version in every_message_and_version():
        rng = random.Random(f"{name} {message_version}")
        decode = schema.decoder(name, message_version)
        originals = [
            encoded(Values(name, message_version, seed).message(), message_version)
            for seed in range(4)
        ]
        for _ in range(MUTATIONS_PER_VERSION):
            frame = mutated(rng.choice(originals), rng)
            tail = frame[:20]  # what a pooled buffer may contain after the frame
            tried += 1
            try:
                message, position = decode(frame + tail, 0, len(frame))
            except PeerBroken:
                refused += 1
                continue
            assert position <= len(frame)
            # Every element takes at least one byte of the frame.
            assert weight(message) <= len(frame)
    assert tried >= 100_000
    assert refused > tried / 10  # the mutations are severe enough


def test_what_a_decoder_accepts_does_not_depend_on_what_follows_the_frame() -> None:
    for name, message_version in every_message_and_version():
        rng = random.Random(f"stale {name} {message_version}")
        decode = schema.decoder(name, message_version)
        raw = encoded(Values(name, message_version, 1).message(), message_version)
        for _ in range(5):
            frame = mutated(raw, rng)
            outcomes: set[bytes | None] = set()
            for tail in (b"", b"\x00" * 64, b"\xff" * 64, raw):
                try:
                    message, _ = decode(frame + tail, 0, len(frame))
                    outcomes.add(encoded(message, message_version))
                except PeerBroken:
                    outcomes.add(None)
            assert len(outcomes) == 1


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_header_or_refused(raw: bytes) -> None:
    for tail in (b"", b"\x00" * 20):
        try:
            header = framing.parse_request_header(raw + tail, 0, len(raw))
        except PeerBroken:
            continue
        assert 8 <= header.body_position <= len(raw)


@given(st.integers(0, 2**32 - 1))
def test_an_unsigned_varint_is_read_back(value: int) -> None:
    out = bytearray()
    schema.put_uvarint(out, value)
    assert schema.read_uvarint(out, 0) == (value, len(out))
    assert len(out) <= 5
