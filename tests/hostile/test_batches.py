"""Goal: no damaged or oversized batch is stored without an error, ends the process or occupies it.
Method: every bit of every kind of batch is flipped; random damage under a valid checksum;
decompression bombs of a gigabyte for every codec, with time and memory measured.
"""

import gzip
import time
import tracemalloc
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.wire import batches
from gateway.wire import record_scan as inside
from gateway.wire.batches import BatchRefused, check_batch, read_header
from gateway.wire.decompress import decompress
from gateway.wire.record_check import RecordRules, check_now, check_steps
from gateway.wire.steps import result_of
from tests.batches import HEADER_BYTES, built_batch, plain_batch, raw_batch, record

MEBIBYTE = 1 << 20
CAP = 16 * MEBIBYTE
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_OURS_TO_WRITE = {*range(12, 16)}  # the leader epoch is replaced anyway

SOUND = {
    "plain": plain_batch([5, 3, 9]),
    "idempotent": plain_batch([5], producer=7, epoch=1, sequence=4),
    **{name: built_batch([5, 3], codec=codec, size=40) for codec, name in CODECS.items()},
}


@pytest.mark.parametrize("name", SOUND)
def test_a_flip_of_any_bit_is_refused(name):
    sound = SOUND[name]
    check_batch(memoryview(sound), 13, CAP)
    for at in set(range(len(sound))) - _OURS_TO_WRITE:
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[at] ^= 1 << bit
            with pytest.raises(BatchRefused) as refused:
                check_batch(memoryview(damaged), 13, CAP)
            if at >= 17:
                assert refused.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("name", SOUND)
def test_a_cut_at_any_byte_is_refused(name):
    sound = SOUND[name]
    for end in range(len(sound)):
        with pytest.raises(BatchRefused):
            check_batch(memoryview(sound[:end]), 13, CAP)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_type_or_sound(data):
    try:
        header = check_batch(memoryview(data), 13, CAP)
    except BatchRefused:
        return
    assert header == read_header(data)


@given(
    st.sampled_from([0, *CODECS]),
    st.integers(1, 2**31 - 1) | st.integers(1, 4),
    st.data(),
)
def test_damage_inside_under_a_right_checksum_is_refused_by_type(codec, count, data):
    """The checksum does not help, because the producer computed it: decoding must be careful."""
    body = bytearray(built_batch([5, 3, 9], codec=codec, size=30)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    batch = raw_batch(bytes(body), count, attributes=codec, base_timestamp=5, max_timestamp=9)
    try:
        keyed(batch)
    except BatchRefused:
        pass
    found = result_of(inside.first_at_or_after(batch, 9, 0, CAP))
    assert found is None or found[0] >= 9
    result_of(inside.record_of_timestamp_max(batch, 0, CAP))


def test_a_record_that_claims_two_gigabytes_takes_none():
    huge = b"\0" + b"\0" + b"\0" + b"\xfe\xff\xff\xff\x0f"  # key length 2^31 - 1
    batch = raw_batch(bytes([2 * len(huge)]) + huge)
    assert peak_bytes(lambda: refused(lambda: keyed(batch))) < MEBIBYTE


def keyed(batch):
    """Check as a compacted topic does. Returns the header."""
    header, rules = read_header(batch), RecordRules(CAP, keyed=True, timestamps=None)
    if check_now(batch, header, rules) is None:
        result_of(check_steps(batch, header, rules))
    return header


# -- bombs ----------------------------------------------------------------------------------------


def gzip_bomb(size):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(MEBIBYTE)
    return b"".join(packer.compress(zeros) for _ in range(size // MEBIBYTE)) + packer.flush()


def snappy_bomb(size):
    return bytes(cramjam.snappy.compress_raw(bytes(size)))


def snappy_lie(size):
    """Return four bytes that declare gigabytes."""
    return b"\xff\xff\xff\xff\x0f" + bytes(60)


def xerial_bomb(size):
    block = snappy_bomb(MEBIBYTE)
    framed = len(block).to_bytes(4, "big") + block
    return b"\x82SNAPPY\x00" + bytes.fromhex("0000000100000001") + framed * (size // MEBIBYTE)


def lz4_bomb(size):
    packer = cramjam.lz4.Compressor()
    zeros = bytes(MEBIBYTE)
    for _ in range(size // MEBIBYTE):
        packer.compress(zeros)
    return bytes(packer.finish())


def zstd_bomb(size):
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    zeros = bytes(MEBIBYTE)
    return b"".join(packer.compress(zeros) for _ in range(size // MEBIBYTE)) + packer.flush()


def zstd_wide(size):
    """Return a frame with a huge window, which a decoder would allocate before the first byte."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(bytes(MEBIBYTE)) + packer.flush()


BOMBS = {
    "gzip": (1, gzip_bomb),
    "snappy": (2, snappy_bomb),
    "snappy lie": (2, snappy_lie),
    "xerial snappy": (2, xerial_bomb),
    "lz4": (3, lz4_bomb),
    "zstd": (4, zstd_bomb),
}


def refused(look):
    with pytest.raises(BatchRefused):
        look()


def peak_bytes(look):
    tracemalloc.start()
    try:
        look()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_bounded_time_and_memory(name):
    codec, make = BOMBS[name]
    bomb = make(256 * MEBIBYTE)
    with pytest.raises(BatchRefused) as why:
        decompress(codec, bomb, CAP)
    assert why.value.code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)
    begun = time.process_time()
    assert peak_bytes(lambda: refused(lambda: decompress(codec, bomb, CAP))) < 4 * CAP
    assert time.process_time() - begun < 2.0


def test_a_zstd_window_beyond_eight_mebibytes_is_refused():
    with pytest.raises(BatchRefused):
        decompress(4, zstd_wide(0), CAP)


def test_many_gzip_members_cost_no_more_than_a_few():
    member = gzip_bomb(0)
    begun = time.process_time()
    refused(lambda: decompress(1, member * 500_000, CAP))
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    ("codec", "compress"), [(1, gzip.compress), (4, zstandard.compress)], ids=["gzip", "zstd"]
)
def test_what_was_compressed_in_parts_is_read_to_its_end(codec, compress):
    parts = [b"a" * 5000, b"", b"b" * 700]
    packed = b"".join(map(compress, parts))
    assert decompress(codec, packed, CAP) == b"".join(parts)
    refused(lambda: decompress(codec, packed, 5699))
    refused(lambda: decompress(codec, packed + b"no part", CAP))


def test_many_zstd_frames_cost_no_more_than_a_few():
    frames = zstandard.compress(b"") * 500_000
    begun = time.process_time()
    assert decompress(4, frames, CAP) == b""
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_what_fits_exactly_is_no_bomb(codec):
    packed = built_batch([1, 2, 3], codec=codec, size=5000)[HEADER_BYTES:]
    whole = decompress(codec, packed, CAP)
    assert decompress(codec, packed, len(whole)) == whole
    refused(lambda: decompress(codec, packed, len(whole) - 1))


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_a_bomb_in_a_batch_is_refused_where_keys_are_asked_for(codec):
    make = {1: gzip_bomb, 2: xerial_bomb, 3: lz4_bomb, 4: zstd_bomb}[codec]
    batch = raw_batch(make(64 * MEBIBYTE), 3, attributes=codec)
    refused(lambda: keyed(batch))


def test_the_cap_follows_the_topics_largest_batch():
    assert batches.decompressed_bytes_max(1000) == CAP
    assert batches.decompressed_bytes_max(4 * MEBIBYTE) == 32 * MEBIBYTE


def test_a_batch_nested_in_a_record_is_only_a_value():
    nested = raw_batch(record(0, 0, b"k", SOUND["zstd"]))
    assert keyed(nested).records == 1
