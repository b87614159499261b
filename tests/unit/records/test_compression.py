"""The codecs: framings of other clients, decompression bombs, invalid data."""

import gzip

import cramjam
import pytest

from headrace.records.batch import CODEC_NAMES, GZIP, LZ4, NO_CODEC, SNAPPY, ZSTD, BadBatch
from headrace.records.compression import compress, decompress

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
TEXT = b"the quick brown fox " * 5_000  # several snappy blocks and lz4 blocks
NAMED = [pytest.param(codec, id=CODEC_NAMES[codec]) for codec in CODECS]


@pytest.mark.parametrize("codec", [pytest.param(NO_CODEC, id="none"), *NAMED])
@pytest.mark.parametrize("data", [b"", b"x", TEXT])
def test_a_round_trip_gives_the_same_bytes(codec: int, data: bytes) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert decompress(codec, kind(compress(codec, kind(data)))) == data


@pytest.mark.parametrize("codec", NAMED)
def test_a_bomb_stops_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(1_000_000))
    assert len(decompress(codec, bomb, 1_000_000)) == 1_000_000
    with pytest.raises(BadBatch):
        decompress(codec, bomb, 999_999)


@pytest.mark.parametrize("codec", NAMED)
def test_truncated_data_raises_bad_batch(codec: int) -> None:
    data = compress(codec, TEXT)
    for size in [*range(40), *range(40, len(data), 97)]:
        # A cut exactly between two xerial blocks is invisible here; the record count reveals it.
        try:
            assert TEXT.startswith(decompress(codec, data[:size]))
            assert codec == SNAPPY
        except BadBatch:
            pass


def test_an_unknown_codec_raises_bad_batch() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(BadBatch):
            decompress(codec, b"")
        with pytest.raises(BadBatch):
            compress(codec, b"")


def test_a_raw_snappy_block_is_read() -> None:
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_a_snappy_block_with_an_impossible_ratio_is_refused_before_memory_is_allocated() -> None:
    with pytest.raises(BadBatch):
        decompress(SNAPPY, b"\xff\xff\xff\x7f" + b"x" * 100)


def test_concatenated_xerial_streams_are_read() -> None:
    assert decompress(SNAPPY, compress(SNAPPY, TEXT) + compress(SNAPPY, b"tail")) == TEXT + b"tail"


def test_a_xerial_block_of_negative_length_is_refused() -> None:
    with pytest.raises(BadBatch):
        decompress(SNAPPY, compress(SNAPPY, b"") + b"\xff\xff\xff\xfe" + b"x" * 10)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
def test_lz4_frames_of_every_kind_are_read(linked: bool, checksum: bool) -> None:
    frame = cramjam.lz4.Compressor(content_checksum=checksum, block_linked=linked)
    frame.compress(TEXT)
    assert decompress(LZ4, bytes(frame.finish())) == TEXT


def test_lz4_frames_have_independent_blocks_since_java_refuses_linked_ones() -> None:
    assert compress(LZ4, TEXT)[4] & 0x20


def test_concatenated_gzip_members_are_read_and_share_the_limit() -> None:
    data = gzip.compress(TEXT) * 2
    assert decompress(GZIP, data) == TEXT * 2
    with pytest.raises(BadBatch):
        decompress(GZIP, data, len(TEXT) * 2 - 1)


@pytest.mark.parametrize(("codec", "least", "most"), [(GZIP, 1, 9), (LZ4, 1, 17), (ZSTD, -5, 19)])
def test_a_higher_level_compresses_better(codec: int, least: int, most: int) -> None:
    data = b"".join(b"%d words, and %d more\n" % (n * n, n % 77) for n in range(5000))
    little, much = (compress(codec, data, level) for level in (most, least))
    assert len(little) < len(much)
    assert decompress(codec, little) == decompress(codec, much) == data


def test_lz4s_default_level_is_the_fast_compressor_as_in_java() -> None:
    data = b"".join(b"%d words, and %d more\n" % (n * n, n % 77) for n in range(5000))
    assert compress(LZ4, data, 9) == compress(LZ4, data) != compress(LZ4, data, 12)
